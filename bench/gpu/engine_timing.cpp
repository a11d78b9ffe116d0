// The engines side by side on one GPU and one rank, hopper without and with decode tiles, without and with pairs of blocks: time
// of a layer, rate of its matrix products, and how far the engines' outputs are apart. One line of text a row.
// Usage: engine_timing [substring of the rows' names]
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "core/counter_rng.hpp"
#include "core/numeric.hpp"
#include "cuda/kernel_table.hpp"
#include "cuda/layer.hpp"
#include "cuda/local_heap.hpp"
#include "random_fill.hpp"

namespace {

using namespace flashmoe;
using namespace flashmoe::cuda_backend;

struct Row {
  std::string name;
  Problem problem;
};

/// Device tensors of one row, the same for all engines.
struct Tensors {
  DeviceMemory up, down, x, ids, weights, y;

  explicit Tensors(const Problem& p) {
    const std::int64_t up_count = std::int64_t{p.num_experts} * p.up_columns() * p.hidden;
    const std::int64_t down_count = std::int64_t{p.num_experts} * p.hidden * p.intermediate;
    const std::int64_t rows = p.max_tokens * p.hidden;
    up = random(p.dtype, up_count, 1, 1.7f / std::sqrt(static_cast<float>(p.hidden)));
    down = random(p.dtype, down_count, 2, 1.7f / std::sqrt(static_cast<float>(p.intermediate)));
    x = random(p.dtype, rows, 3, 1.7f);
    y = DeviceMemory(0, static_cast<std::size_t>(rows) * 2);
    std::vector<std::int32_t> drawn;
    std::vector<float> shares;
    const CounterRng rng(4, 1);
    std::uint64_t draws = 0;
    for (std::int64_t token = 0; token < p.max_tokens; ++token) {
      const auto begin = drawn.size();
      while (drawn.size() < begin + static_cast<std::size_t>(p.top_k)) {
        const auto expert = static_cast<std::int32_t>(rng.below(draws++, static_cast<std::uint64_t>(p.num_experts)));
        if (std::find(drawn.begin() + static_cast<std::ptrdiff_t>(begin), drawn.end(), expert) != drawn.end()) continue;
        drawn.push_back(expert);
        shares.push_back(static_cast<float>(rng.uniform(draws++)));
      }
    }
    ids = DeviceMemory(0, drawn.size() * 4);
    weights = DeviceMemory(0, shares.size() * 4);
    check(cudaMemcpy(ids.as(), drawn.data(), ids.bytes(), cudaMemcpyHostToDevice), "cudaMemcpy");
    check(cudaMemcpy(weights.as(), shares.data(), weights.bytes(), cudaMemcpyHostToDevice), "cudaMemcpy");
  }

  static DeviceMemory random(DType dtype, std::int64_t count, std::uint64_t seed, float scale) {
    DeviceMemory memory(0, static_cast<std::size_t>(count) * 2);
    bench::fill_random(dtype, memory.as(), count, seed, scale);
    return memory;
  }

  std::vector<double> output(const Problem& p) const {
    std::vector<char> bytes(y.bytes());
    check(cudaMemcpy(bytes.data(), y.as(), bytes.size(), cudaMemcpyDeviceToHost), "cudaMemcpy");
    std::vector<double> values(bytes.size() / 2);
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = load_element(p.dtype, bytes.data(), static_cast<std::int64_t>(i));
    }
    return values;
  }
};

/// Microseconds of one call: a quarter of a second of launches back to back, so that the power limit shows.
double time_layer(Layer& layer, const CallInput& input) {
  cudaEvent_t begin;
  cudaEvent_t end;
  check(cudaEventCreate(&begin), "cudaEventCreate");
  check(cudaEventCreate(&end), "cudaEventCreate");
  float ms = 0.0f;
  int calls = 5;
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 2; ++i) layer.forward(input, cudaStreamPerThread);
    check(cudaEventRecord(begin, cudaStreamPerThread), "cudaEventRecord");
    for (int i = 0; i < calls; ++i) layer.forward(input, cudaStreamPerThread);
    check(cudaEventRecord(end, cudaStreamPerThread), "cudaEventRecord");
    check(cudaEventSynchronize(end), "cudaEventSynchronize");
    check(cudaEventElapsedTime(&ms, begin, end), "cudaEventElapsedTime");
    if (round == 0) calls = std::clamp(static_cast<int>(250.0f / (ms / static_cast<float>(calls))), 5, 2000);
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  layer.status();
  return 1e3 * ms / calls;
}

double distance(const std::vector<double>& a, const std::vector<double>& b) {
  double difference = 0.0;
  double norm = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return std::sqrt(difference / norm);
}

void time_row(const Row& row) {
  const Problem& p = row.problem;
  const Tensors tensors(p);
  const double routes = static_cast<double>(p.max_tokens) * p.top_k;
  const double flops = 2.0 * routes * p.hidden * p.intermediate * (p.gated ? 3 : 2);
  std::vector<double> first;
  struct Variant {
    std::string_view name;
    Engine engine;
    int decode_rows;
    int pair_rows;
  };
  constexpr int kNever = std::numeric_limits<int>::max();
  for (const auto& [variant, engine, decode_rows, pair_rows] :
       {Variant{"portable", Engine::portable, 0, kNever}, Variant{"hopper, prefill tiles", Engine::hopper, 0, kNever},
        Variant{"hopper, no pairs", Engine::hopper, hopper::kDecodeRows, kNever},
        Variant{"hopper", Engine::hopper, hopper::kDecodeRows, hopper::kPairRows}}) {
    EngineTraits traits = engine_traits(p, engine);
    traits.tile.pair_rows = pair_rows;
    const auto heap = std::make_shared<LocalHeap>(plan_geometry(p, traits), std::vector<int>{0});
    const auto context = std::make_shared<RankContext>(
        heap, 0, p.dtype, LaunchOptions{.deadline_seconds = 5.0, .decode_rows = decode_rows});
    Layer layer(context, p, {tensors.up.as(), tensors.down.as(), nullptr, nullptr}, 1);
    check(cudaMemset(tensors.y.as(), 0xff, tensors.y.bytes()), "cudaMemset");
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    const CallInput input{.x = {tensors.x.as(), p.max_tokens},
                          .routing = {tensors.ids.as<std::int32_t>(), tensors.weights.as<float>()},
                          .y = {tensors.y.as(), p.max_tokens},
                          .max_tokens = p.max_tokens};
    const double us = time_layer(layer, input);
    const std::vector<double> output = tensors.output(p);
    if (first.empty()) first = output;
    fmt::print("{:24} tokens {:5} {:21} {:10.1f} us {:7.1f} TFLOP/s  waves of {}  distance {:.2e}\n", row.name,
               p.max_tokens, variant, us, flops / us * 1e-6, heap->layout().geometry.wave_tokens,
               distance(output, first));
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view wanted = argc > 1 ? argv[1] : "";
  const Problem qwen3{.hidden = 2048, .intermediate = 768, .num_experts = 128, .top_k = 8};
  Problem qwen3_quarter = qwen3;  // what one of four ranks computes
  qwen3_quarter.num_experts = 32;
  const Problem mixtral{.hidden = 4096, .intermediate = 14336, .num_experts = 8, .top_k = 2};
  const Problem scout{.hidden = 5120, .intermediate = 8192, .num_experts = 16, .top_k = 1};
  const Problem gpt_oss{.hidden = 2880, .intermediate = 2880, .num_experts = 32, .top_k = 4};
  const Problem thesis{.hidden = 1024, .intermediate = 4096, .num_experts = 32, .top_k = 2,
                       .activation = Activation::relu, .gated = false};
  for (const Row& row : {Row{"qwen3-30b-a3b", qwen3}, Row{"qwen3-30b-a3b/4", qwen3_quarter},
                         Row{"mixtral-8x7b", mixtral}, Row{"llama4-scout", scout}, Row{"gpt-oss-120b/4", gpt_oss},
                         Row{"thesis", thesis}}) {
    if (row.name.find(wanted) == std::string::npos) continue;
    for (const std::int64_t tokens : {8192, 1024, 128, 16, 1}) {
      Row sized = row;
      sized.problem.max_tokens = tokens;
      time_row(sized);
    }
  }
  return 0;
}
