// route_logits against formulas written another way, and the logits that break routers.
#include "cpu/router.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "flashmoe/error.hpp"
#include "flashmoe/router.hpp"
#include "routed.hpp"
#include "support/router_oracle.hpp"

namespace flashmoe::test {
namespace {

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

}  // namespace
}  // namespace flashmoe::test
