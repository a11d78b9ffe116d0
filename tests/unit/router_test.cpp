// route_logits against formulas written another way, values by hand, and the logits that break routers.
#include "cpu/router.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "core/counter_rng.hpp"
#include "core/numeric.hpp"
#include "flashmoe/error.hpp"
#include "flashmoe/router.hpp"
#include "support/router_oracle.hpp"

namespace flashmoe::test {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Routed {
  std::vector<std::int32_t> ids;
  std::vector<float> weights;
  bool operator==(const Routed&) const = default;
};

Routed route(const RouterConfig& config, const std::vector<float>& logits, const std::vector<float>& bias = {}) {
  const auto num_tokens = static_cast<std::int64_t>(logits.size()) / config.num_experts;
  const auto num_routes = static_cast<std::size_t>(num_tokens * config.top_k);
  Routed routed{std::vector<std::int32_t>(num_routes, -7), std::vector<float>(num_routes, kNaN)};
  route_logits(config, num_tokens, logits.data(), bias.empty() ? nullptr : bias.data(), routed.ids.data(),
               routed.weights.data());
  return routed;
}

// Roughly normal: the sum of twelve uniforms.
std::vector<float> random_logits(std::int64_t count, std::uint64_t seed, double scale = 1.0) {
  const CounterRng rng(seed, 0);
  std::vector<float> logits;
  for (std::int64_t i = 0; i < count; ++i) {
    double sum = -6.0;
    for (std::uint64_t j = 0; j < 12; ++j) sum += rng.uniform(static_cast<std::uint64_t>(i) * 12 + j);
    logits.push_back(static_cast<float>(sum * scale));
  }
  return logits;
}

// One configuration of every function, as published models use them.
std::vector<RouterConfig> every_config() {
  using enum RouterFunction;
  return {{.function = softmax_topk, .num_experts = 64, .top_k = 8},
          {.function = softmax_topk, .num_experts = 64, .top_k = 8, .renormalize = true},
          {.function = topk_softmax, .num_experts = 32, .top_k = 4},
          {.function = sigmoid_grouped, .num_experts = 64, .top_k = 6, .renormalize = true, .scaling_factor = 2.5,
           .num_groups = 8, .topk_groups = 4},
          {.function = sigmoid_topk, .num_experts = 16, .top_k = 1},
          {.function = sigmoid_topk, .num_experts = 16, .top_k = 3, .renormalize = true},
          {.function = softmax_group_limited, .num_experts = 160, .top_k = 6, .scaling_factor = 16.0, .num_groups = 8,
           .topk_groups = 3},
          {.function = sparsemixer, .num_experts = 16, .top_k = 2}};
}

void expect_distinct_in_range(const RouterConfig& config, const Routed& routed) {
  for (std::size_t first = 0; first < routed.ids.size(); first += static_cast<std::size_t>(config.top_k)) {
    const auto begin = routed.ids.begin() + static_cast<std::ptrdiff_t>(first);
    const std::set<std::int32_t> ids(begin, begin + config.top_k);
    ASSERT_EQ(ids.size(), static_cast<std::size_t>(config.top_k)) << "ids repeat";
    ASSERT_GE(*ids.begin(), 0);
    ASSERT_LT(*ids.rbegin(), config.num_experts);
  }
  for (const float weight : routed.weights) ASSERT_TRUE(std::isfinite(weight));
}

double weight_sum(const Routed& routed, const RouterConfig& config, std::int64_t token = 0) {
  const auto begin = routed.weights.begin() + token * config.top_k;
  return std::accumulate(begin, begin + config.top_k, 0.0);
}

// ---- against the oracle

class RouterOracle : public testing::TestWithParam<RouterConfig> {};

TEST_P(RouterOracle, AgreesOnRandomLogits) {
  const RouterConfig& config = GetParam();
  const bool biased = config.function == RouterFunction::sigmoid_grouped;
  constexpr std::int64_t num_tokens = 300;
  for (const double scale : {0.02, 1.0, 6.0}) {
    const std::vector<float> logits = random_logits(num_tokens * config.num_experts, 11, scale);
    const std::vector<float> bias = biased ? random_logits(config.num_experts, 12, 0.2) : std::vector<float>{};
    const Routed routed = route(config, logits, bias);
    for (std::int64_t token = 0; token < num_tokens; ++token) {
      const auto row = logits.begin() + token * config.num_experts;
      const Routes expected = oracle_routes(config, {row, row + config.num_experts}, {bias.begin(), bias.end()});
      for (int k = 0; k < config.top_k; ++k) {
        ASSERT_EQ(routed.ids[token * config.top_k + k], expected.ids[k]) << "token " << token << " choice " << k;
        ASSERT_NEAR(routed.weights[token * config.top_k + k] / expected.weights[k], 1.0L, 1e-7L) << "token " << token;
      }
    }
  }
}

// Logits of a few values only: nearly every choice is a tie, and exact in long double too.
TEST_P(RouterOracle, AgreesOnTies) {
  const RouterConfig& config = GetParam();
  std::vector<float> logits(static_cast<std::size_t>(200 * config.num_experts));
  const CounterRng rng(13, 0);
  for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(rng.below(i, 3)) - 1.0f;
  const Routed routed = route(config, logits);
  for (std::int64_t token = 0; token < 200; ++token) {
    const auto row = logits.begin() + token * config.num_experts;
    const Routes expected = oracle_routes(config, {row, row + config.num_experts}, {});
    for (int k = 0; k < config.top_k; ++k) ASSERT_EQ(routed.ids[token * config.top_k + k], expected.ids[k]);
  }
}

TEST_P(RouterOracle, EqualLogitsGiveTheFirstExpertsWhateverTheBatch) {
  const RouterConfig& config = GetParam();
  for (const std::int64_t num_tokens : {1, 4096}) {
    for (const float logit : {0.0f, -3.5f, 1e30f, -1e30f, kInfinity, -kInfinity}) {
      const Routed routed = route(config, std::vector<float>(static_cast<std::size_t>(num_tokens * config.num_experts), logit));
      for (std::size_t i = 0; i < routed.ids.size(); ++i) {
        ASSERT_EQ(routed.ids[i], static_cast<int>(i) % config.top_k) << "logit " << logit;
      }
      expect_distinct_in_range(config, routed);
    }
  }
}

TEST_P(RouterOracle, NegativeLogitsRouteLikeOthers) {
  const RouterConfig& config = GetParam();
  std::vector<float> logits = random_logits(50 * config.num_experts, 14);
  for (float& logit : logits) logit = -std::abs(logit) - 1.0f;
  const Routed routed = route(config, logits);
  for (std::int64_t token = 0; token < 50; ++token) {
    const auto row = logits.begin() + token * config.num_experts;
    const Routes expected = oracle_routes(config, {row, row + config.num_experts}, {});
    for (int k = 0; k < config.top_k; ++k) ASSERT_EQ(routed.ids[token * config.top_k + k], expected.ids[k]);
  }
}

TEST_P(RouterOracle, NoTokensAreNoWork) {
  route_logits(GetParam(), 0, nullptr, nullptr, nullptr, nullptr);
}

TEST_P(RouterOracle, ScalingFactorMultipliesOnce) {
  RouterConfig config = GetParam();
  const std::vector<float> logits = random_logits(20 * config.num_experts, 15);
  config.scaling_factor = 1.0;
  const Routed plain = route(config, logits);
  config.scaling_factor = 4.0;
  const Routed scaled = route(config, logits);
  EXPECT_EQ(scaled.ids, plain.ids);
  for (std::size_t i = 0; i < plain.weights.size(); ++i) EXPECT_EQ(scaled.weights[i], 4.0f * plain.weights[i]);
}

TEST_P(RouterOracle, WeightsSumToOneWhenRenormalisedAndOnlyThen) {
  RouterConfig config = GetParam();
  config.scaling_factor = 1.0;
  const std::vector<float> logits = random_logits(10000 * config.num_experts, 16);
  for (const bool renormalize : {true, false}) {
    config.renormalize = renormalize;
    const Routed routed = route(config, logits);
    int ones = 0;
    for (std::int64_t token = 0; token < 10000; ++token) ones += std::abs(weight_sum(routed, config, token) - 1.0) < 1e-5;
    const bool always_one = renormalize || config.function == RouterFunction::topk_softmax;
    if (always_one) {
      EXPECT_EQ(ones, 10000);
    } else {
      EXPECT_LT(ones, 100);
    }
  }
}

TEST_P(RouterOracle, SameLogitsSameBits) {
  const std::vector<float> logits = random_logits(100 * GetParam().num_experts, 17);
  const Routed first = route(GetParam(), logits);
  for (int run = 0; run < 20; ++run) ASSERT_EQ(route(GetParam(), logits), first);
}

TEST_P(RouterOracle, IdsComeInOrderOfFallingLogits) {
  const RouterConfig& config = GetParam();
  const std::vector<float> logits = random_logits(100 * config.num_experts, 18);
  const Routed routed = route(config, logits);
  for (std::int64_t token = 0; token < 100; ++token) {
    for (int k = 1; k < config.top_k; ++k) {
      const auto logit = [&](int choice) { return logits[token * config.num_experts + routed.ids[token * config.top_k + choice]]; };
      ASSERT_GE(logit(k - 1), logit(k));
    }
  }
}

// ---- NaN and infinity

TEST_P(RouterOracle, AllNaNGivesTheFirstExpertsAtWeightZeroAndTouchesNoOtherToken) {
  const RouterConfig& config = GetParam();
  std::vector<float> logits = random_logits(3 * config.num_experts, 19);
  const Routed clean = route(config, logits);
  std::fill(logits.begin() + config.num_experts, logits.begin() + 2 * config.num_experts, kNaN);
  const Routed routed = route(config, logits);
  for (int k = 0; k < config.top_k; ++k) {
    EXPECT_EQ(routed.ids[config.top_k + k], k);
    EXPECT_EQ(routed.weights[config.top_k + k], 0.0f);
    for (const int token : {0, 2}) {
      EXPECT_EQ(routed.ids[token * config.top_k + k], clean.ids[token * config.top_k + k]);
      EXPECT_EQ(routed.weights[token * config.top_k + k], clean.weights[token * config.top_k + k]);
    }
  }
}

TEST_P(RouterOracle, APartlyNaNRowRoutesAmongTheNumbers) {
  RouterConfig config = GetParam();
  config.renormalize = true;
  config.scaling_factor = 1.0;
  std::vector<float> logits = random_logits(config.num_experts, 20);
  const Routed clean = route(config, logits);
  const int bad[] = {clean.ids[0], 3, config.num_experts - 1};  // the best one too
  for (const int expert : bad) logits[expert] = expert % 2 == 0 ? kNaN : -kNaN;
  const Routed routed = route(config, logits);
  expect_distinct_in_range(config, routed);
  for (const std::int32_t id : routed.ids) EXPECT_FALSE(std::isnan(logits[id]));
  EXPECT_NEAR(weight_sum(routed, config), 1.0, 1e-6);
}

TEST_P(RouterOracle, RandomSpecialValuesNeverGiveABadRoute) {
  const RouterConfig& config = GetParam();
  constexpr float specials[] = {kNaN, -kNaN, kInfinity, -kInfinity, 3.4e38f, -3.4e38f, 1e-45f, 0.0f, -0.0f};
  const CounterRng rng(21, 0);
  std::vector<float> logits = random_logits(2000 * config.num_experts, 22);
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const auto token = i / static_cast<std::size_t>(config.num_experts);
    if (rng.below(2 * i, 20) < token % 21) logits[i] = specials[rng.below(2 * i + 1, 9)];  // from none to all
  }
  std::vector<float> bias;
  if (config.function == RouterFunction::sigmoid_grouped) {
    for (int e = 0; e < config.num_experts; ++e) bias.push_back(e % 5 == 0 ? specials[e % 9] : 0.01f * static_cast<float>(e));
  }
  expect_distinct_in_range(config, route(config, logits, bias));
}

TEST_P(RouterOracle, InfinityTakesTheWholeSoftmax) {
  RouterConfig config = GetParam();
  config.scaling_factor = 1.0;
  std::vector<float> logits = random_logits(config.num_experts, 23);
  logits[5] = kInfinity;
  const Routed routed = route(config, logits);
  expect_distinct_in_range(config, routed);
  const bool by_softmax =
      config.function != RouterFunction::sigmoid_grouped && config.function != RouterFunction::sigmoid_topk;
  EXPECT_TRUE(!by_softmax || (routed.ids[0] == 5 && routed.weights[0] == 1.0f)) << routed.weights[0];
}

INSTANTIATE_TEST_SUITE_P(, RouterOracle, testing::ValuesIn(every_config()), [](const auto& test) {
  return std::string(to_string(test.param.function)) + (test.param.renormalize ? "_renormalised" : "");
});

// ---- sizes

TEST(Router, EveryExpertMayBeChosen) {
  for (const int num_experts : {1, 2, 6, 31, 32}) {
    const RouterConfig config{.num_experts = num_experts, .top_k = num_experts, .renormalize = true};
    const Routed routed = route(config, random_logits(10 * num_experts, 24));
    expect_distinct_in_range(config, routed);
    for (std::int64_t token = 0; token < 10; ++token) EXPECT_NEAR(weight_sum(routed, config, token), 1.0, 1e-6);
  }
}

TEST(Router, ManyExpertsAndOddTopK) {
  for (const int num_experts : {160, 256, 512, 1024, 1025, 2048, 4096}) {
    const RouterConfig config{.num_experts = num_experts, .top_k = num_experts == 512 ? 10 : 6, .renormalize = true};
    std::vector<float> logits = random_logits(20 * num_experts, 25);
    for (float& logit : logits) logit = -std::abs(logit) - 1.0f;
    const Routed routed = route(config, logits);
    for (std::int64_t token = 0; token < 20; ++token) {
      const auto row = logits.begin() + token * num_experts;
      const Routes expected = oracle_routes(config, {row, row + num_experts}, {});
      for (int k = 0; k < config.top_k; ++k) {
        ASSERT_EQ(routed.ids[token * config.top_k + k], expected.ids[k]) << num_experts;
        ASSERT_NEAR(routed.weights[token * config.top_k + k], expected.weights[k], 1e-7L);
      }
    }
  }
}

// ---- by hand

TEST(RouterByHand, SoftmaxTopK) {
  const std::vector<float> logits = {0.0f, std::log(3.0f), std::log(2.0f), std::log(2.0f)};  // softmax 1/8 3/8 2/8 2/8
  RouterConfig config{.num_experts = 4, .top_k = 2};
  Routed routed = route(config, logits);
  EXPECT_EQ(routed.ids, (std::vector<std::int32_t>{1, 2}));
  EXPECT_NEAR(routed.weights[0], 0.375, 1e-7);
  EXPECT_NEAR(routed.weights[1], 0.25, 1e-7);
  config.renormalize = true;
  routed = route(config, logits);
  EXPECT_NEAR(routed.weights[0], 0.6, 1e-7);
  EXPECT_NEAR(routed.weights[1], 0.4, 1e-7);
}

TEST(RouterByHand, DeepSeekV3BiasSelectsButDoesNotWeigh) {
  // Sigmoid of 0 is 1/2. Two groups of two; the bias lifts experts 2 and 3 above 0 and 1.
  const RouterConfig config{.function = RouterFunction::sigmoid_grouped, .num_experts = 4, .top_k = 2,
                            .renormalize = true, .scaling_factor = 2.5, .num_groups = 2, .topk_groups = 1};
  const std::vector<float> logits = {0.0f, 0.0f, -std::log(3.0f), 0.0f};  // sigmoid 1/2 1/2 1/4 1/2
  EXPECT_EQ(route(config, logits).ids, (std::vector<std::int32_t>{0, 1}));
  const Routed lifted = route(config, logits, {0.0f, 0.0f, 0.5f, 0.1f});
  EXPECT_EQ(lifted.ids, (std::vector<std::int32_t>{2, 3}));
  EXPECT_NEAR(lifted.weights[0], 2.5 / 3.0, 1e-6);
  EXPECT_NEAR(lifted.weights[1], 2.5 * 2.0 / 3.0, 1e-6);
}

TEST(RouterByHand, TwoBestExpertsMakeAV3GroupAndOneMakesAV2Group) {
  RouterConfig config{.function = RouterFunction::sigmoid_grouped, .num_experts = 4, .top_k = 1, .num_groups = 2, .topk_groups = 1};
  const std::vector<float> logits = {3.0f, -9.0f, 1.0f, 1.0f};  // group 0 has the best, group 1 the better pair
  EXPECT_EQ(route(config, logits).ids, (std::vector<std::int32_t>{2}));
  config.function = RouterFunction::softmax_group_limited;
  EXPECT_EQ(route(config, logits).ids, (std::vector<std::int32_t>{0}));
}

TEST(RouterByHand, ANegativeBiasNeverLetsADroppedGroupIn) {
  // Scores below 0 in the kept group, 0 or more nowhere: a mask of 0 instead of -infinity would pick the other group.
  const RouterConfig config{.function = RouterFunction::sigmoid_grouped, .num_experts = 4, .top_k = 2, .num_groups = 2, .topk_groups = 1};
  const Routed routed = route(config, {0.0f, 0.0f, 0.0f, 0.0f}, {-5.0f, -5.0f, -2.0f, -3.0f});
  EXPECT_EQ(routed.ids, (std::vector<std::int32_t>{2, 3}));
  EXPECT_EQ(routed.weights, (std::vector<float>{0.5f, 0.5f}));
}

TEST(RouterByHand, LlamaFourWeightIsTheSigmoidOfTheLogit) {
  const RouterConfig config{.function = RouterFunction::sigmoid_topk, .num_experts = 3, .top_k = 1};
  const Routed routed = route(config, {-std::log(4.0f), -std::log(3.0f), -2.0f});
  EXPECT_EQ(routed.ids, (std::vector<std::int32_t>{1}));
  EXPECT_NEAR(routed.weights[0], 0.25, 1e-7);
}

TEST(RouterByHand, SparsemixerSoftmaxesWithinItsBand) {
  const RouterConfig config{.function = RouterFunction::sparsemixer, .num_experts = 4, .top_k = 2, .jitter_epsilon = 0.1};
  // Best 10: the band reaches to 8, so 9 counts and 5 does not. Then best 9: reaches to 7.2.
  const Routed routed = route(config, {9.0f, 10.0f, 5.0f, 8.5f});
  EXPECT_EQ(routed.ids, (std::vector<std::int32_t>{1, 0}));
  EXPECT_NEAR(routed.weights[0], 1.0 / (1.0 + std::exp(-1.0) + std::exp(-1.5)), 1e-7);
  EXPECT_NEAR(routed.weights[1], 1.0 / (1.0 + std::exp(-0.5)), 1e-7);
}

TEST(RouterByHand, HugeLogitsDoNotOverflow) {
  const RouterConfig config{.num_experts = 3, .top_k = 2};
  EXPECT_EQ(route(config, {3e38f, 3e38f, -3e38f}).weights, (std::vector<float>{0.5f, 0.5f}));
}

TEST(RouterByHand, EqualInfinitiesShareTheSoftmax) {
  const RouterConfig config{.num_experts = 4, .top_k = 3};
  const Routed routed = route(config, {1.0f, kInfinity, 2.0f, kInfinity});
  EXPECT_EQ(routed.ids, (std::vector<std::int32_t>{1, 3, 2}));
  EXPECT_EQ(routed.weights, (std::vector<float>{0.5f, 0.5f, 0.0f}));
}

TEST(RouterByHand, TooFewNumbersAreFilledUpWithTheLowestIds) {
  const RouterConfig config{.num_experts = 5, .top_k = 4, .renormalize = true};
  const Routed routed = route(config, {kNaN, kNaN, 1.0f, kNaN, 1.0f});
  EXPECT_EQ(routed.ids, (std::vector<std::int32_t>{2, 4, 0, 1}));
  EXPECT_EQ(routed.weights, (std::vector<float>{0.5f, 0.5f, 0.0f, 0.0f}));
}

// ---- refusals

TEST(Router, InputsThatMeanNothingAreRefused) {
  const RouterConfig config{.num_experts = 2, .top_k = 1};
  const float values[2] = {};
  std::int32_t id = 0;
  float weight = 0.0f;
  EXPECT_THROW(route_logits(config, -1, values, nullptr, &id, &weight), InvalidArgument);
  EXPECT_THROW(route_logits(config, 1, values, values, &id, &weight), InvalidArgument) << "a bias nothing would use";
  EXPECT_THROW(route_logits({.num_experts = 2, .top_k = 3}, 1, values, nullptr, &id, &weight), InvalidArgument);
}

// ---- the matrix product

TEST(RouterLogits, AreTheProductInDoubleRoundedOnce) {
  constexpr int num_experts = 7, hidden = 50, num_tokens = 5;
  const std::vector<float> weight = random_logits(num_experts * hidden, 30);
  const std::vector<float> bias = random_logits(num_experts, 31);
  const std::vector<float> values = random_logits(num_tokens * hidden, 32);
  for (const DType dtype : {DType::bf16, DType::fp16, DType::fp32, DType::fp64}) {
    std::vector<char> x(values.size() * dtype_bytes(dtype));
    store_floats(dtype, values.data(), static_cast<std::int64_t>(values.size()), x.data());
    for (const bool biased : {false, true}) {
      std::vector<float> logits(num_tokens * num_experts, kNaN);
      router_logits({num_experts, hidden, weight.data(), biased ? bias.data() : nullptr}, dtype, {x.data(), num_tokens},
                    logits.data());
      for (int token = 0; token < num_tokens; ++token) {
        for (int expert = 0; expert < num_experts; ++expert) {
          long double sum = biased ? bias[expert] : 0.0f;
          for (int i = 0; i < hidden; ++i) {
            sum += load_element(dtype, x.data(), token * hidden + i) * static_cast<long double>(weight[expert * hidden + i]);
          }
          EXPECT_FLOAT_EQ(logits[token * num_experts + expert], static_cast<float>(sum));
        }
      }
    }
  }
}

TEST(RouterLogits, KeepTermsThatFp32AccumulationLoses) {
  const std::vector<float> weight = {1e8f, 1.0f, -1e8f};
  const std::vector<float> x = {1.0f, 0.5f, 1.0f};
  float logit = 0.0f;
  router_logits({1, 3, weight.data(), nullptr}, DType::fp32, {x.data(), 1}, &logit);
  EXPECT_EQ(logit, 0.5f);
}

TEST(RouterLogits, ANaNRowStaysInItsRow) {
  const std::vector<float> weight = {1.0f, 2.0f, 3.0f, 4.0f};
  const std::vector<float> x = {kNaN, 1.0f, 1.0f, 1.0f};
  std::vector<float> logits(4);
  router_logits({2, 2, weight.data(), nullptr}, DType::fp32, {x.data(), 2}, logits.data());
  EXPECT_TRUE(std::isnan(logits[0]) && std::isnan(logits[1]));
  EXPECT_EQ(logits[2], 3.0f);
  EXPECT_EQ(logits[3], 7.0f);
}

}  // namespace
}  // namespace flashmoe::test
