// Time of one MoE layer on the GPUs of this machine, calls back to back: one JSON object a row on stdout. Every rank's
// call is timed by events on its stream; a call takes as long as it does on the slowest rank, and latency_us is the
// median call. FLASHMOE_ENGINE names the engine, as for tests.
// Usage: layer_timing [ranks a GPU]   (default 1; several are virtual ranks that share a GPU)
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "support/cuda_world.hpp"

namespace {

using namespace flashmoe;
using namespace flashmoe::test;
using cuda_backend::check;
using cuda_backend::DeviceGuard;

constexpr int kWarmUp = 20;
constexpr int kCalls = 100;

/// Events around each call of one rank.
class CallEvents {
 public:
  explicit CallEvents(int device) : guard_device_(device), events_(kCalls + 1) {
    const DeviceGuard guard(device);
    for (cudaEvent_t& event : events_) check(cudaEventCreate(&event), "cudaEventCreate");
  }
  ~CallEvents() {
    for (cudaEvent_t event : events_) cudaEventDestroy(event);
  }
  CallEvents(const CallEvents&) = delete;
  CallEvents& operator=(const CallEvents&) = delete;

  void record(int index, cudaStream_t stream) const {
    const DeviceGuard guard(guard_device_);
    check(cudaEventRecord(events_[static_cast<std::size_t>(index)], stream), "cudaEventRecord");
  }
  double call_us(int call) const {
    float ms = 0;
    const auto before = static_cast<std::size_t>(call);
    check(cudaEventElapsedTime(&ms, events_[before], events_[before + 1]), "cudaEventElapsedTime");
    return 1e3 * ms;
  }

 private:
  int guard_device_;
  std::vector<cudaEvent_t> events_;
};

/// Relative L2 of a few tokens of rank 0.
double sampled_error(const Problem& problem, const ExpertSource& experts, const Batch& batch) {
  std::vector<std::int64_t> sample;
  for (std::int64_t token = 0; token < batch.num_tokens; token += std::max<std::int64_t>(1, batch.num_tokens / 4)) {
    sample.push_back(token);
  }
  const auto wanted = reference::layer(problem, experts, batch.x_view(), batch.routing(), sample, 16);
  const std::vector<double> all = batch.output(problem);
  std::vector<double> got;
  for (const std::int64_t token : sample) {
    got.insert(got.end(), all.begin() + token * problem.hidden, all.begin() + (token + 1) * problem.hidden);
  }
  return reference::relative_l2(got, wanted);
}

void time_row(const std::string& model, const Problem& problem, const ExpertSource& experts, CudaWorld& world,
              std::int64_t tokens) {
  const auto num_ranks = static_cast<std::size_t>(problem.num_ranks);
  std::vector<Batch> batches;
  std::vector<std::unique_ptr<CallEvents>> events;
  for (std::size_t rank = 0; rank < num_ranks; ++rank) {
    batches.push_back(make_batch(problem, tokens, 5 + rank));
    const DeviceGuard guard(world.context(rank).device());
    world.seat(rank).load(batches[rank]);
    events.push_back(std::make_unique<CallEvents>(world.context(rank).device()));
  }
  world.synchronize_all();
  const auto call = [&](int index) {
    for (std::size_t rank = 0; rank < num_ranks; ++rank) {
      world.layer(rank).forward(world.seat(rank).input(tokens, tokens), world.stream(rank));
      if (index >= 0) events[rank]->record(index, world.stream(rank));
    }
  };
  for (int i = 1; i < kWarmUp; ++i) call(-1);
  for (int i = 0; i <= kCalls; ++i) call(i);
  world.synchronize_all();
  std::vector<double> us;
  for (int i = 0; i < kCalls; ++i) {
    us.push_back(0);
    for (const auto& rank : events) us.back() = std::max(us.back(), rank->call_us(i));
  }
  std::sort(us.begin(), us.end());
  for (std::size_t rank = 0; rank < num_ranks; ++rank) world.layer(rank).status();

  world.seat(0).store(batches[0]);
  const CallPlan plan = world.layer(0).plan(tokens);
  const auto payload = world.context(0).state().payload_bytes;
  call(-1);
  world.synchronize_all();
  fmt::print("{{\"model\": \"{}\", \"tokens_per_rank\": {}, \"num_ranks\": {}, \"dtype\": \"{}\", "
             "\"routing\": \"uniform\", \"engine\": \"{}\", \"wire_form\": \"{}\", \"result_form\": \"{}\", "
             "\"latency_us\": {:.1f}, \"p95_us\": {:.1f}, \"fastest_us\": {:.1f}, \"rel_l2\": {:.3g}, "
             "\"wire_bytes\": {}, \"heap_bytes\": {}, \"local_bytes\": {}}}\n",
             model, tokens, problem.num_ranks, to_string(problem.dtype),
             to_string(cuda_backend::engine_of(world.layout().geometry)), to_string(plan.wire_form),
             to_string(plan.result_form), us[us.size() / 2], us[us.size() * 95 / 100], us.front(),
             sampled_error(problem, experts, batches[0]), world.context(0).state().payload_bytes - payload,
             world.layout().total_bytes, world.context(0).local_bytes());
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const int num_devices = num_visible_gpus();
  if (num_devices == 0) {
    fmt::print(stderr, "layer_timing needs a GPU, this machine has none\n");
    return 4;
  }
  const int num_ranks = num_devices * (argc > 1 ? std::max(1, std::atoi(argv[1])) : 1);
  const Problem qwen3{.num_ranks = num_ranks, .hidden = 2048, .intermediate = 768, .num_experts = 128, .top_k = 8,
                      .max_tokens = 8192};
  const Problem thesis{.num_ranks = num_ranks, .hidden = 1024, .intermediate = 4096, .num_experts = 32, .top_k = 2,
                       .max_tokens = 8192, .activation = Activation::relu, .gated = false};
  for (const auto& [model, shape] : {std::pair{"qwen3-30b-a3b", qwen3}, std::pair{"thesis", thesis}}) {
    const auto experts = std::make_shared<DenseExperts>(shape, 1);
    for (const WireForm form : {WireForm::automatic, WireForm::counted}) {
      Problem problem = shape;
      problem.wire_form = form;
      CudaWorld world(problem, experts, {.deadline_seconds = 5.0}, num_devices);
      for (const std::int64_t tokens : {1, 16, 32, 64, 128, 256, 1024, 8192}) {
        // Both forms where both may run.
        if (form == WireForm::counted && world.layout().geometry.lined_tokens == 0 && tokens > 128) continue;
        time_row(model, problem, *experts, world, tokens);
      }
    }
  }
  return 0;
}
