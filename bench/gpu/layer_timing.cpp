// Time of one MoE layer on the GPUs of this machine, calls back to back: one JSON object a row on stdout. Every rank's
// call is timed by events on its stream; a call takes as long as it does on the slowest rank, and latency_us is the
// median call. At decode sizes also what recording timelines costs: untraced_us and traced_us are medians of calls that
// take turns. FLASHMOE_ENGINE names the engine, as for tests.
// Usage: layer_timing [ranks a GPU] [most tokens]   (default 1 and 8192; several are virtual ranks that share a GPU)
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "cuda/device_trace.hpp"
#include "planner/bound.hpp"
#include "planner/rank_memory.hpp"
#include "support/cuda_world.hpp"

namespace {

using namespace flashmoe;
using namespace flashmoe::test;
using cuda_backend::check;
using cuda_backend::DeviceGuard;

constexpr int kWarmUp = 20;
constexpr int kCalls = 100;
constexpr std::int64_t kDecodeTokens = 128;  ///< up to here timelines are tried
constexpr std::size_t kTraceRecords = 4096;

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

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// One row's calls, of all ranks back to back.
class Calls {
 public:
  Calls(const Problem& problem, CudaWorld& world, std::int64_t tokens) : world_(world), tokens_(tokens) {
    for (std::size_t rank = 0; rank < static_cast<std::size_t>(problem.num_ranks); ++rank) {
      batches_.push_back(make_batch(problem, tokens, 5 + rank));
      const DeviceGuard guard(world.context(rank).device());
      world.seat(rank).load(batches_[rank]);
      events_.push_back(std::make_unique<CallEvents>(world.context(rank).device()));
    }
    world.synchronize_all();
  }

  /// Times of kCalls calls, us. `targets`: where every other call, from the second on, records its timelines; or none.
  std::vector<double> time(const std::vector<cuda_backend::TraceTarget>& targets = {}) {
    for (int i = 1; i < kWarmUp; ++i) call(-1, targets);
    for (int i = 0; i <= kCalls; ++i) call(i, targets);
    world_.synchronize_all();
    std::vector<double> us;
    for (int i = 0; i < kCalls; ++i) {
      us.push_back(0);
      for (const auto& rank : events_) us.back() = std::max(us.back(), rank->call_us(i));
    }
    for (std::size_t rank = 0; rank < events_.size(); ++rank) world_.layer(rank).status();
    return us;
  }

  /// Bytes that rank 0 sends in one call, to other ranks.
  std::uint64_t wire_bytes() {
    const std::uint64_t before = world_.context(0).state().payload_bytes;
    call(-1, {});
    world_.synchronize_all();
    return world_.context(0).state().payload_bytes - before;
  }

  /// With the results that lie on the GPU.
  const Batch& first_batch() {
    world_.seat(0).store(batches_[0]);
    return batches_[0];
  }

  std::vector<RankWork> work(const Problem& problem) const {
    std::vector<RoutingView> routing;
    for (const Batch& batch : batches_) routing.push_back(batch.routing());
    return count_work(problem, routing, std::vector<std::int64_t>(batches_.size(), tokens_));
  }

 private:
  void call(int index, const std::vector<cuda_backend::TraceTarget>& targets) {
    for (std::size_t rank = 0; rank < events_.size(); ++rank) {
      cuda_backend::CallInput input = world_.seat(rank).input(tokens_, tokens_);
      if (!targets.empty() && index % 2 == 0) input.trace = targets[rank];
      world_.layer(rank).forward(input, world_.stream(rank));
      if (index >= 0) events_[rank]->record(index, world_.stream(rank));
    }
  }

  CudaWorld& world_;
  std::int64_t tokens_;
  std::vector<Batch> batches_;
  std::vector<std::unique_ptr<CallEvents>> events_;
};

/// Medians of calls without and with timelines.
nlohmann::json tracing_cost(CudaWorld& world, Calls& calls, int num_ranks) {
  std::vector<std::unique_ptr<cuda_backend::DeviceTrace>> traces;
  std::vector<cuda_backend::TraceTarget> targets;
  for (std::size_t rank = 0; rank < static_cast<std::size_t>(num_ranks); ++rank) {
    traces.push_back(std::make_unique<cuda_backend::DeviceTrace>(world.context(rank), kTraceRecords));
    targets.push_back(traces.back()->target());
  }
  // Time i is that of call i + 1.
  std::vector<double> without, with;
  const std::vector<double> us = calls.time(targets);
  for (std::size_t i = 0; i < us.size(); ++i) (i % 2 == 0 ? without : with).push_back(us[i]);
  return {{"untraced_us", median(std::move(without))}, {"traced_us", median(std::move(with))}};
}

void time_row(const std::string& model, const Problem& problem, const ExpertSource& experts, CudaWorld& world,
              std::int64_t tokens, int num_devices) {
  Calls calls(problem, world, tokens);
  std::vector<double> us = calls.time();
  std::sort(us.begin(), us.end());
  const double latency_us = us[us.size() / 2];
  const double rel_l2 = sampled_error(problem, experts, calls.first_batch());
  const std::uint64_t wire_bytes = calls.wire_bytes();
  const CallPlan plan = world.layer(0).plan(tokens);
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, world.context(0).device()), "cudaGetDeviceProperties");
  const BoundCard card = bound_card(properties.name, problem.dtype);
  const LayerBound bound = layer_bound(problem, calls.work(problem), card.rates);
  nlohmann::json row{{"model", model},
                     {"tokens_per_rank", tokens},
                     {"num_ranks", problem.num_ranks},
                     {"dtype", to_string(problem.dtype)},
                     {"routing", "uniform"},
                     {"engine", to_string(cuda_backend::engine_of(world.layout().geometry))},
                     {"wire_form", to_string(plan.wire_form)},
                     {"result_form", to_string(plan.result_form)},
                     {"latency_us", latency_us},
                     {"p95_us", us[us.size() * 95 / 100]},
                     {"fastest_us", us.front()},
                     {"rel_l2", rel_l2},
                     {"bound_card", card.name},
                     {"bound_us", bound.rank.us()},
                     {"bound_limiter", bound.rank.limiter()},
                     {"fraction_of_bound", bound.rank.us() / latency_us},
                     {"tflops_per_gpu", bound.flops / num_devices / latency_us * 1e-6},
                     {"hbm_bytes", bound.memory_bytes},
                     {"hbm_gb_per_s", bound.memory_bytes / latency_us * 1e-3},
                     {"wire_bytes", wire_bytes},
                     {"wire_gb_per_s", static_cast<double>(wire_bytes) / latency_us * 1e-3},
                     {"heap_bytes", world.layout().total_bytes},
                     {"local_bytes", world.context(0).local_bytes()},
                     {"rank_memory_bytes", rank_memory_bytes(problem, world.layout().total_bytes,
                                                             world.context(0).local_bytes())}};
  if (tokens <= kDecodeTokens) row.update(tracing_cost(world, calls, problem.num_ranks));
  fmt::print("{}\n", row.dump());
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
  const std::int64_t most_tokens = argc > 2 ? std::atoll(argv[2]) : 8192;
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
        if (tokens > most_tokens) continue;
        // Both forms where both may run.
        if (form == WireForm::counted && world.layout().geometry.lined_tokens == 0 && tokens > 128) continue;
        time_row(model, problem, *experts, world, tokens, num_devices);
      }
    }
  }
  return 0;
}
