// The GPU router against the fp64 one: logits within the bound of fp32 sums, choices equal but where two scores are
// closer than that, and bits that do not depend on the batch.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "core/numeric.hpp"
#include "cuda/check.hpp"
#include "cuda/memory.hpp"
#include "cuda/router_args.hpp"
#include "flashmoe/router.hpp"
#include "gpu/device.hpp"

namespace flashmoe::cuda_backend {
namespace {

struct Batch {
  DType dtype;
  std::int64_t num_tokens;
  int hidden;
  RouterConfig config;
  std::vector<double> x, gate;  // as stored, widened
  std::vector<float> gate_bias, selection_bias;
};

struct Routes {
  std::vector<float> logits;
  std::vector<std::int32_t> ids;
  std::vector<float> weights;
};

template <class T>
DeviceMemory upload(const std::vector<T>& values) {
  DeviceMemory memory(0, values.size() * sizeof(T));
  check(cudaMemcpy(memory.as<char>(), values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice), "cudaMemcpy");
  return memory;
}

DeviceMemory upload(DType dtype, const std::vector<double>& values) {
  std::vector<char> stored(values.size() * dtype_bytes(dtype));
  for (std::size_t i = 0; i < values.size(); ++i) {
    store_element(dtype, stored.data(), static_cast<std::int64_t>(i), values[i]);
  }
  return upload(stored);
}

template <class T>
std::vector<T> download(const DeviceMemory& memory, std::size_t count) {
  std::vector<T> values(count);
  check(cudaMemcpy(values.data(), memory.as<char>(), count * sizeof(T), cudaMemcpyDeviceToHost), "cudaMemcpy");
  return values;
}

RouterArgs args_of(const RouterConfig& config) {
  RouterArgs args;
  args.num_experts = config.num_experts;
  args.top_k = config.top_k;
  args.function = config.function;
  args.renormalize = config.renormalize;
  args.scaling_factor = static_cast<float>(config.scaling_factor);
  args.num_groups = config.num_groups;
  args.topk_groups = config.topk_groups;
  args.jitter_epsilon = static_cast<float>(config.jitter_epsilon);
  return args;
}

/// Bytes all ones: NaN, and ids of -1.
DeviceMemory poisoned(std::size_t bytes) {
  DeviceMemory memory(0, bytes);
  check(cudaMemset(memory.as<char>(), 0xff, bytes), "cudaMemset");
  return memory;
}

/// Routes of the first `num_tokens` tokens; the count comes from device memory where `counted`.
Routes route_on_gpu(const Batch& batch, std::int64_t num_tokens, bool counted = false) {
  const RouterConfig& config = batch.config;
  const auto tokens = static_cast<std::size_t>(batch.num_tokens);
  const auto routes = tokens * static_cast<std::size_t>(config.top_k);
  const DeviceMemory x = upload(batch.dtype, batch.x);
  const DeviceMemory gate = upload(batch.dtype, batch.gate);
  const DeviceMemory gate_bias = upload(batch.gate_bias);
  const DeviceMemory selection_bias = upload(batch.selection_bias);
  const DeviceMemory count = upload(std::vector<std::int64_t>{num_tokens});
  const DeviceMemory logits = poisoned(tokens * static_cast<std::size_t>(config.num_experts) * sizeof(float));
  const DeviceMemory ids = poisoned(routes * sizeof(std::int32_t));
  const DeviceMemory weights = poisoned(routes * sizeof(float));
  RouterArgs args = args_of(config);
  args.x = x.as();
  args.gate = gate.as();
  args.gate_bias = batch.gate_bias.empty() ? nullptr : gate_bias.as<float>();
  args.selection_bias = batch.selection_bias.empty() ? nullptr : selection_bias.as<float>();
  args.logits = logits.as<float>();
  args.topk_ids = ids.as<std::int32_t>();
  args.topk_weights = weights.as<float>();
  args.max_tokens = counted ? batch.num_tokens : num_tokens;
  if (counted) args.num_tokens = count.as<std::int64_t>();
  args.hidden = batch.hidden;
  launch_router(batch.dtype, args, cudaStreamPerThread);
  check(cudaStreamSynchronize(cudaStreamPerThread), "cudaStreamSynchronize");
  return {download<float>(logits, tokens * static_cast<std::size_t>(config.num_experts)),
          download<std::int32_t>(ids, routes), download<float>(weights, routes)};
}

Routes route_logits_on_gpu(const RouterConfig& config, const std::vector<float>& given,
                           const std::vector<float>& selection_bias) {
  const auto tokens = given.size() / static_cast<std::size_t>(config.num_experts);
  const auto routes = tokens * static_cast<std::size_t>(config.top_k);
  const DeviceMemory logits = upload(given);
  const DeviceMemory bias = upload(selection_bias);
  const DeviceMemory ids = poisoned(routes * sizeof(std::int32_t));
  const DeviceMemory weights = poisoned(routes * sizeof(float));
  RouterArgs args = args_of(config);
  args.given_logits = logits.as<float>();
  args.selection_bias = selection_bias.empty() ? nullptr : bias.as<float>();
  args.topk_ids = ids.as<std::int32_t>();
  args.topk_weights = weights.as<float>();
  args.max_tokens = static_cast<std::int64_t>(tokens);
  launch_router(DType::fp32, args, cudaStreamPerThread);
  check(cudaStreamSynchronize(cudaStreamPerThread), "cudaStreamSynchronize");
  return {given, download<std::int32_t>(ids, routes), download<float>(weights, routes)};
}

Batch make_batch(DType dtype, std::int64_t num_tokens, int hidden, const RouterConfig& config, std::uint64_t seed) {
  Batch batch{dtype, num_tokens, hidden, config, {}, {}, {}, {}};
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  const auto fill = [&](std::vector<double>& values, std::size_t count, double scale) {
    std::vector<char> stored(dtype_bytes(dtype));
    for (std::size_t i = 0; i < count; ++i) {
      store_element(dtype, stored.data(), 0, normal(random) * scale);
      values.push_back(load_element(dtype, stored.data(), 0));
    }
  };
  fill(batch.x, static_cast<std::size_t>(num_tokens) * static_cast<std::size_t>(hidden), 1.0);
  fill(batch.gate, static_cast<std::size_t>(config.num_experts) * static_cast<std::size_t>(hidden),
       1.5 / std::sqrt(static_cast<double>(hidden)));
  const auto biases = [&](std::vector<float>& values) {
    for (int expert = 0; expert < config.num_experts; ++expert) values.push_back(static_cast<float>(0.1 * normal(random)));
  };
  if (random() % 2 == 0) biases(batch.gate_bias);
  if (config.function == RouterFunction::sigmoid_grouped) biases(batch.selection_bias);
  return batch;
}

struct Exact {
  std::vector<float> logits;   // rounded once from fp64
  std::vector<double> bounds;  // of an fp32 sum in any order: hidden * 2^-23 * sum |x w|
};

Exact exact_logits(const Batch& batch) {
  Exact exact;
  const auto hidden = static_cast<std::size_t>(batch.hidden);
  for (std::int64_t token = 0; token < batch.num_tokens; ++token) {
    const double* x = batch.x.data() + static_cast<std::size_t>(token) * hidden;
    for (int expert = 0; expert < batch.config.num_experts; ++expert) {
      const double* w = batch.gate.data() + static_cast<std::size_t>(expert) * hidden;
      double sum = 0.0;
      double magnitude = 0.0;
      for (std::size_t k = 0; k < hidden; ++k) {
        sum += x[k] * w[k];
        magnitude += std::abs(x[k] * w[k]);
      }
      if (!batch.gate_bias.empty()) sum += batch.gate_bias[static_cast<std::size_t>(expert)];
      exact.logits.push_back(static_cast<float>(sum));
      exact.bounds.push_back((static_cast<double>(batch.hidden) * magnitude + std::abs(sum)) * 0x1p-23);
    }
  }
  return exact;
}

Routes route_on_cpu(const RouterConfig& config, const std::vector<float>& logits, const std::vector<float>& selection_bias) {
  const auto tokens = logits.size() / static_cast<std::size_t>(config.num_experts);
  Routes routes{logits, {}, {}};
  routes.ids.resize(tokens * static_cast<std::size_t>(config.top_k));
  routes.weights.resize(routes.ids.size());
  route_logits(config, static_cast<std::int64_t>(tokens), logits.data(),
               selection_bias.empty() ? nullptr : selection_bias.data(), routes.ids.data(), routes.weights.data());
  return routes;
}

/// Ids and weights that follow from the GPU's own logits: fp32 against double. Ids may differ only where the scores do
/// by less than fp32 resolves (sigmoid plus bias); returns how many tokens did.
int expect_same_choice(const RouterConfig& config, const Routes& got, const Routes& wanted) {
  int num_near_ties = 0;
  const auto top_k = static_cast<std::size_t>(config.top_k);
  for (std::size_t token = 0; token < wanted.ids.size() / top_k; ++token) {
    const auto begin = static_cast<std::ptrdiff_t>(token * top_k);
    const bool same = std::equal(wanted.ids.begin() + begin, wanted.ids.begin() + begin + config.top_k, got.ids.begin() + begin);
    if (!same) {
      ++num_near_ties;
      EXPECT_TRUE(config.function == RouterFunction::sigmoid_grouped) << "token " << token;
      continue;
    }
    for (std::size_t k = 0; k < top_k; ++k) {
      const float a = got.weights[token * top_k + k];
      const float b = wanted.weights[token * top_k + k];
      EXPECT_LE(std::abs(a - b), 4e-6f * std::abs(b) + 1e-24f) << "token " << token << ", choice " << k;
    }
  }
  return num_near_ties;
}

RouterConfig config_of(RouterFunction function, int num_experts, int top_k) {
  RouterConfig config{.function = function, .num_experts = num_experts, .top_k = top_k};
  if (function == RouterFunction::sigmoid_grouped || function == RouterFunction::softmax_group_limited) {
    if (num_experts % 8 == 0 && num_experts >= 16 && top_k <= num_experts / 2) config.num_groups = 8, config.topk_groups = 4;
    config.scaling_factor = 2.5;
  }
  if (function == RouterFunction::sparsemixer) config.top_k = 2;
  config.renormalize = num_experts % 3 == 0 || function == RouterFunction::sigmoid_grouped;
  return config;
}

constexpr RouterFunction kFunctions[] = {
    RouterFunction::softmax_topk, RouterFunction::topk_softmax,          RouterFunction::sigmoid_grouped,
    RouterFunction::sigmoid_topk, RouterFunction::softmax_group_limited, RouterFunction::sparsemixer};

void compare(const Batch& batch) {
  const Routes got = route_on_gpu(batch, batch.num_tokens);
  const Exact exact = exact_logits(batch);
  int num_far = 0;
  for (std::size_t i = 0; i < exact.logits.size(); ++i) {
    if (!(std::abs(static_cast<double>(got.logits[i]) - exact.logits[i]) <= exact.bounds[i])) ++num_far;
  }
  EXPECT_EQ(num_far, 0) << "logits beyond the bound of fp32 sums";
  const int num_near_ties = expect_same_choice(batch.config, got, route_on_cpu(batch.config, got.logits, batch.selection_bias));
  EXPECT_LE(num_near_ties, 1 + batch.num_tokens / 1000);

  // Against the fp64 router: another id only where two logits are closer than their bounds.
  const Routes wanted = route_on_cpu(batch.config, exact.logits, batch.selection_bias);
  const auto top_k = static_cast<std::size_t>(batch.config.top_k);
  const auto experts = static_cast<std::size_t>(batch.config.num_experts);
  int num_others = 0;
  for (std::size_t token = 0; token < static_cast<std::size_t>(batch.num_tokens); ++token) {
    if (std::equal(wanted.ids.begin() + static_cast<std::ptrdiff_t>(token * top_k),
                   wanted.ids.begin() + static_cast<std::ptrdiff_t>((token + 1) * top_k),
                   got.ids.begin() + static_cast<std::ptrdiff_t>(token * top_k))) {
      continue;
    }
    ++num_others;
    if (batch.config.function == RouterFunction::sigmoid_grouped) continue;  // its scores, not its logits, are near ties
    std::vector<float> sorted(exact.logits.begin() + static_cast<std::ptrdiff_t>(token * experts),
                              exact.logits.begin() + static_cast<std::ptrdiff_t>((token + 1) * experts));
    std::sort(sorted.begin(), sorted.end());
    double closest = std::numeric_limits<double>::infinity();
    for (std::size_t i = 1; i < sorted.size(); ++i) closest = std::min(closest, double{sorted[i]} - double{sorted[i - 1]});
    const double bound = *std::max_element(exact.bounds.begin() + static_cast<std::ptrdiff_t>(token * experts),
                                           exact.bounds.begin() + static_cast<std::ptrdiff_t>((token + 1) * experts));
    EXPECT_LE(closest, 2 * bound) << "token " << token << " has other ids without a near tie";
  }
  EXPECT_LE(num_others, 1 + batch.num_tokens / 50);
}

struct Shape {
  std::int64_t num_tokens;
  int hidden, num_experts, top_k;
};

TEST(GpuRouter, every_function_over_shapes_and_types) {
  FLASHMOE_REQUIRE_GPUS(1);
  std::uint64_t seed = 1;
  for (const Shape shape : {Shape{1, 64, 2, 1}, {3, 8, 8, 2}, {5, 2880, 32, 4}, {16, 2048, 128, 8}, {33, 7168, 256, 8},
                            {100, 1024, 60, 6}, {257, 512, 64, 32}, {7, 4096, 1024, 16}, {70, 1536, 384, 9},
                            {600, 256, 512, 10}, {300, 104, 257, 5}, {2100, 128, 128, 8}}) {
    for (const DType dtype : {DType::bf16, DType::fp16, DType::fp32}) {
      for (const RouterFunction function : kFunctions) {
        const RouterConfig config = config_of(function, shape.num_experts, shape.top_k);
        if (config.top_k > shape.num_experts) continue;
        SCOPED_TRACE(testing::Message() << to_string(dtype) << ' ' << to_string(function) << " tokens " << shape.num_tokens
                                        << " hidden " << shape.hidden << " experts " << shape.num_experts);
        compare(make_batch(dtype, shape.num_tokens, shape.hidden, config, seed++));
      }
    }
  }
}

TEST(GpuRouter, a_token_has_the_same_bits_in_any_batch) {
  FLASHMOE_REQUIRE_GPUS(1);
  for (const DType dtype : {DType::bf16, DType::fp32}) {
    const RouterConfig config = config_of(RouterFunction::softmax_topk, 160, 8);
    const Batch batch = make_batch(dtype, 2500, 1000, config, 5);
    const Routes all = route_on_gpu(batch, 2500);
    for (const std::int64_t num_tokens : {1, 15, 64, 130, 300, 2049, 2400}) {
      const Routes some = route_on_gpu(batch, num_tokens);
      const auto count = static_cast<std::size_t>(num_tokens);
      EXPECT_EQ(std::memcmp(some.logits.data(), all.logits.data(), count * 160 * sizeof(float)), 0) << num_tokens;
      EXPECT_EQ(std::memcmp(some.ids.data(), all.ids.data(), count * 8 * sizeof(std::int32_t)), 0) << num_tokens;
      EXPECT_EQ(std::memcmp(some.weights.data(), all.weights.data(), count * 8 * sizeof(float)), 0) << num_tokens;
    }
  }
}

TEST(GpuRouter, counts_come_from_device_memory_and_rows_beyond_stay_untouched) {
  FLASHMOE_REQUIRE_GPUS(1);
  const Batch batch = make_batch(DType::bf16, 300, 256, config_of(RouterFunction::topk_softmax, 32, 4), 6);
  const Routes all = route_on_gpu(batch, 300);
  for (const std::int64_t num_tokens : {0, 1, 100, 300}) {
    const Routes some = route_on_gpu(batch, num_tokens, true);
    for (std::size_t i = 0; i < some.ids.size(); ++i) {
      EXPECT_EQ(some.ids[i], i < static_cast<std::size_t>(num_tokens) * 4 ? all.ids[i] : -1) << num_tokens << ": " << i;
    }
  }
}

TEST(GpuRouter, unusual_logits_go_by_the_rules) {
  FLASHMOE_REQUIRE_GPUS(1);
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  constexpr float inf = std::numeric_limits<float>::infinity();
  std::mt19937 random(3);
  for (const RouterFunction function : kFunctions) {
    const RouterConfig config = config_of(function, 32, 6);
    std::vector<float> logits;
    const auto row = [&](auto&& value_of) {
      for (int expert = 0; expert < 32; ++expert) logits.push_back(value_of(expert));
    };
    row([](int) { return nan; });
    row([](int) { return 0.5f; });
    row([](int) { return -0.0f; });
    row([](int expert) { return expert == 9 || expert == 20 ? 1.0f : nan; });
    row([](int expert) { return expert % 4 == 1 ? inf : -1.0f; });
    row([](int) { return -inf; });
    row([](int expert) { return expert < 3 ? -inf : nan; });
    row([](int expert) { return static_cast<float>(-100 - expert); });
    row([](int expert) { return expert % 2 == 0 ? 0.0f : -0.0f; });
    for (int i = 0; i < 500; ++i) {
      row([&](int) { return random() % 8 == 0 ? nan : static_cast<float>(random() % 16) * 0.25f - 2.0f; });  // many ties
    }
    SCOPED_TRACE(testing::Message() << to_string(function));
    const Routes got = route_logits_on_gpu(config, logits, {});
    EXPECT_EQ(expect_same_choice(config, got, route_on_cpu(config, logits, {})), 0);
  }
}

TEST(GpuRouter, one_kernel_that_a_graph_replays) {
  FLASHMOE_REQUIRE_GPUS(1);
  const Batch batch = make_batch(DType::bf16, 64, 512, config_of(RouterFunction::softmax_topk, 64, 4), 7);
  const Routes wanted = route_on_gpu(batch, 64);
  const DeviceMemory x = upload(batch.dtype, batch.x);
  const DeviceMemory gate = upload(batch.dtype, batch.gate);
  const DeviceMemory gate_bias = upload(batch.gate_bias);
  const DeviceMemory ids = poisoned(64 * 4 * sizeof(std::int32_t));
  const DeviceMemory weights = poisoned(64 * 4 * sizeof(float));
  RouterArgs args = args_of(batch.config);
  args.x = x.as();
  args.gate = gate.as();
  args.gate_bias = batch.gate_bias.empty() ? nullptr : gate_bias.as<float>();
  args.topk_ids = ids.as<std::int32_t>();
  args.topk_weights = weights.as<float>();
  args.max_tokens = 64;
  args.hidden = batch.hidden;
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  launch_router(DType::bf16, args, stream);
  check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  std::size_t num_nodes = 0;
  check(cudaGraphGetNodes(graph, nullptr, &num_nodes), "cudaGraphGetNodes");
  EXPECT_EQ(num_nodes, 1u);
  check(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
  for (int i = 0; i < 3; ++i) check(cudaGraphLaunch(executable, stream), "cudaGraphLaunch");
  check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  EXPECT_EQ(download<std::int32_t>(ids, 64 * 4), wanted.ids);
  EXPECT_EQ(download<float>(weights, 64 * 4), wanted.weights);
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

}  // namespace
}  // namespace flashmoe::cuda_backend
