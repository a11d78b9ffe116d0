// Time of one MoE layer on the GPUs of this machine, calls back to back: one JSON object a row on stdout.
// Usage: layer_timing [ranks a GPU]   (default 1; several are virtual ranks that share a GPU)
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <map>

#include "support/cuda_world.hpp"

namespace {

using namespace flashmoe;
using namespace flashmoe::test;

constexpr int kWarmUp = 10;
constexpr int kCalls = 60;

struct Row {
  std::string model;
  Problem problem;
};

void time_row(const Row& row, const std::shared_ptr<const ExpertSource>& experts, int num_devices) {
  const Problem& p = row.problem;
  CudaWorld world(p, experts, {.deadline_seconds = 5.0}, num_devices);
  std::vector<Batch> batches;
  std::vector<CudaWorld::Uploaded> uploaded;
  const auto num_ranks = static_cast<std::size_t>(p.num_ranks);
  for (std::size_t rank = 0; rank < num_ranks; ++rank) {
    batches.push_back(make_batch(p, p.max_tokens, 5 + rank));
    uploaded.push_back(world.upload(rank, batches[rank]));
  }
  world.synchronize_all();
  const auto call = [&] {
    for (std::size_t rank = 0; rank < num_ranks; ++rank) {
      world.layer(rank).forward({.x = {uploaded[rank].x.as(), p.max_tokens},
                                 .routing = {uploaded[rank].ids.as<std::int32_t>(), uploaded[rank].weights.as<float>()},
                                 .y = {uploaded[rank].y.as(), p.max_tokens},
                                 .max_tokens = p.max_tokens},
                                world.stream(rank));
    }
  };
  for (int i = 0; i < kWarmUp; ++i) call();
  world.synchronize_all();
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < kCalls; ++i) call();
  world.synchronize_all();
  const double us = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count() / kCalls;
  for (std::size_t rank = 0; rank < num_ranks; ++rank) world.layer(rank).status();

  Batch& first = batches.front();
  cuda_backend::check(cudaMemcpy(first.y.data(), uploaded.front().y.as(), first.y.size(), cudaMemcpyDeviceToHost),
                      "cudaMemcpy");
  std::vector<std::int64_t> sample;
  for (std::int64_t token = 0; token < p.max_tokens; token += std::max<std::int64_t>(1, p.max_tokens / 4)) {
    sample.push_back(token);
  }
  const auto wanted = reference::layer(p, *experts, first.x_view(), first.routing(), sample, 16);
  const std::vector<double> all = first.output(p);
  std::vector<double> got;
  for (const std::int64_t token : sample) {
    got.insert(got.end(), all.begin() + token * p.hidden, all.begin() + (token + 1) * p.hidden);
  }
  const auto state = world.context(0).state();
  fmt::print("{{\"model\": \"{}\", \"tokens_per_rank\": {}, \"num_ranks\": {}, \"gpus\": {}, \"dtype\": \"{}\", "
             "\"wire_form\": \"{}\", \"result_form\": \"{}\", \"latency_us\": {:.1f}, \"rel_l2\": {:.3g}, "
             "\"wire_bytes\": {}, \"heap_bytes\": {}, \"local_bytes\": {}}}\n",
             row.model, p.max_tokens, p.num_ranks, num_devices, to_string(p.dtype),
             to_string(world.layer(0).plan(p.max_tokens).wire_form),
             to_string(world.layer(0).plan(p.max_tokens).result_form), us, reference::relative_l2(got, wanted),
             state.payload_bytes / (kWarmUp + kCalls), world.layout().total_bytes, world.context(0).local_bytes());
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  int num_devices = 0;
  if (cudaGetDeviceCount(&num_devices) != cudaSuccess || num_devices == 0) {
    fmt::print(stderr, "layer_timing needs a GPU, this machine has none\n");
    return 4;
  }
  const int num_ranks = num_devices * (argc > 1 ? std::max(1, std::atoi(argv[1])) : 1);
  const Problem qwen3{.num_ranks = num_ranks, .hidden = 2048, .intermediate = 768, .num_experts = 128, .top_k = 8};
  const Problem thesis{.num_ranks = num_ranks, .hidden = 1024, .intermediate = 4096, .num_experts = 32, .top_k = 2,
                       .activation = Activation::relu, .gated = false};
  for (const Row& model : {Row{"qwen3-30b-a3b", qwen3}, Row{"thesis", thesis}}) {
    const auto experts = std::make_shared<DenseExperts>(model.problem, 1);
    for (const std::int64_t tokens : {16, 128, 1024, 8192}) {
      for (const WireForm form : {WireForm::automatic, WireForm::counted}) {
        if (form == WireForm::counted && tokens > 128) continue;
        Row row = model;
        row.problem.max_tokens = tokens;
        row.problem.wire_form = form;
        time_row(row, experts, num_devices);
      }
    }
  }
  return 0;
}
