// route_logits where the result can be worked out by hand: what a published rule says in its corners.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "routed.hpp"

namespace flashmoe::test {
namespace {

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

TEST(RouterByHand, NANDUP4_AGroupWithTooFewNumbersComesBehindEveryGroupWithEnough) {
  RouterConfig config{.function = RouterFunction::sigmoid_grouped, .num_experts = 6, .top_k = 2, .renormalize = true,
                      .num_groups = 3, .topk_groups = 1};
  // Pairs make a group. Groups 0 and 2 have the best experts but one number each; scores of group 1 add up to less.
  const std::vector<float> logits = {9.0f, kNaN, -3.0f, -3.0f, kNaN, 8.0f};
  Routed routed = route(config, logits);
  EXPECT_EQ(routed.ids, (std::vector<std::int32_t>{2, 3}));
  EXPECT_EQ(routed.weights, (std::vector<float>{0.5f, 0.5f}));
  // Of two such groups the better one is kept, and what is missing in it comes from no other: ids of weight 0.
  config.topk_groups = 2;
  config.top_k = 4;
  routed = route(config, logits);
  EXPECT_EQ(routed.ids, (std::vector<std::int32_t>{0, 2, 3, 1}));
  EXPECT_GT(routed.weights[0], 0.9f);
  EXPECT_EQ(routed.weights[3], 0.0f);
}

TEST(RouterByHand, NANDUP4_AGroupOfNaNComesBehindNegativeLogits) {
  // One expert makes a group; nothing adds up to 0, which is more than any of group 1.
  const RouterConfig config{.function = RouterFunction::softmax_group_limited, .num_experts = 4, .top_k = 2,
                            .renormalize = true, .num_groups = 2, .topk_groups = 1};
  const Routed routed = route(config, {kNaN, kNaN, -5.0f, -5.0f});
  EXPECT_EQ(routed.ids, (std::vector<std::int32_t>{2, 3}));
  EXPECT_EQ(routed.weights, (std::vector<float>{0.5f, 0.5f}));
}

TEST(RouterByHand, NANDUP4_AGroupWhoseSumIsNoNumberComesLast) {
  // Infinite biases of both signs: no sum, wherever the group stands.
  const RouterConfig config{.function = RouterFunction::sigmoid_grouped, .num_experts = 4, .top_k = 2,
                            .num_groups = 2, .topk_groups = 1};
  const std::vector<float> logits = {0.0f, 0.0f, 0.0f, 0.0f};
  EXPECT_EQ(route(config, logits, {kInfinity, -kInfinity, -9.0f, -9.0f}).ids, (std::vector<std::int32_t>{2, 3}));
  EXPECT_EQ(route(config, logits, {-9.0f, -9.0f, kInfinity, -kInfinity}).ids, (std::vector<std::int32_t>{0, 1}));
}

}  // namespace
}  // namespace flashmoe::test
