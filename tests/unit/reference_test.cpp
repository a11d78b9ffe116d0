// The reference layer against cases worked by hand and laws that any layer obeys.
#include "cpu/reference.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cmath>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "flashmoe/error.hpp"
#include "support/plain_layer.hpp"

namespace flashmoe::test::plain {
namespace {

using testing::HasSubstr;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// ---- by hand

TEST(ReferenceByHand, GatedExpert) {
  const Problem problem{.hidden = 2, .intermediate = 2, .num_experts = 1, .top_k = 1, .dtype = DType::fp64,
                        .activation = Activation::identity};
  // gate = (1, 2), up = (3, -1), h = (3, -2), down h = (3 - 4, 9 - 8)
  const Experts experts(problem, {{{1, 0, 0, 1, /* up */ 1, 1, 1, -1}, {1, 2, 3, 4}, {}, {}}});
  EXPECT_EQ(run(problem, experts, {{1, 2}, {0}, {0.5f}}), (std::vector<double>{-0.5, 0.5}));
}

TEST(ReferenceByHand, PlainExpertWithBiases) {
  const Problem problem{.hidden = 2, .intermediate = 2, .num_experts = 1, .top_k = 1, .dtype = DType::fp64,
                        .activation = Activation::relu, .gated = false, .up_bias = true, .down_bias = true};
  // x W^T + b = (3 + 1, -1 - 5) -> relu (4, 0) -> (4, 8) + (10, 20) = (14, 28), times 2
  const Experts experts(problem, {{{1, 1, 1, -1}, {1, 1, 2, 1}, {1, -5}, {10, 20}}});
  EXPECT_EQ(run(problem, experts, {{1, 2}, {0}, {2.0f}}), (std::vector<double>{28, 56}));
}

TEST(ReferenceByHand, WeightOnInputScalesBeforeTheBiasAndTheActivation) {
  Problem problem{.hidden = 1, .intermediate = 1, .num_experts = 1, .top_k = 1, .dtype = DType::fp64,
                  .activation = Activation::relu_squared, .gated = false, .up_bias = true, .down_bias = true};
  const Experts experts(problem, {{{2}, {1}, {1}, {100}}});
  EXPECT_EQ(run(problem, experts, {{3}, {0}, {0.5f}}), (std::vector<double>{0.5 * (49 + 100)}));
  problem.weight_on_input = true;
  EXPECT_EQ(run(problem, experts, {{3}, {0}, {0.5f}}), (std::vector<double>{16 + 100}));
}

TEST(ReferenceByHand, SmallTermsSurviveCancellation) {
  const Problem problem{.hidden = 1, .intermediate = 1, .num_experts = 1, .top_k = 3, .dtype = DType::bf16,
                        .activation = Activation::identity, .gated = false};
  const Experts experts(problem, {{{1}, {1}, {}, {}}});
  EXPECT_EQ(run(problem, experts, {{1}, {0, 0, 0}, {1.0f, 0x1p-9f, -1.0f}}), (std::vector<double>{0x1p-9}));
}

TEST(ReferenceByHand, ZeroMatricesLeaveTheBiases) {
  Problem problem = small_problem();
  problem.down_bias = problem.up_bias = true;
  std::vector<Expert> experts = random_experts(problem, 1);
  for (Expert& expert : experts) std::fill(expert.down.begin(), expert.down.end(), 0.0);
  const std::vector<double> y = run(problem, Experts(problem, experts), {random_values(16, 2), {4, -1, -1}, {2.0f, 1, 1}});
  for (int i = 0; i < problem.hidden; ++i) EXPECT_EQ(y[i], 2.0 * experts[4].down_bias[i]);
}

// ---- laws

TEST(Reference, OneRowEqualsALayerOfOneRoute) {
  const Problem problem = small_problem();
  const Experts experts(problem, random_experts(problem, 9));
  const std::vector<double> x = random_values(16, 10);
  std::vector<double> row(16, kNaN);
  reference::expert_row(problem, *experts.expert(2), x.data(), 0.75, row.data());
  EXPECT_EQ(row, run(problem, experts, {x, {-1, 2, -1}, {1, 0.75f, 1}}));
}

TEST(Reference, IsLinearInTheTokenWithoutActivation) {
  Problem problem = small_problem();
  problem.activation = Activation::identity;
  problem.gated = false;
  const Experts experts(problem, random_experts(problem, 11));
  const std::vector<double> a = random_values(16, 12), b = random_values(16, 13);
  std::vector<double> mixed(16);
  for (int i = 0; i < 16; ++i) mixed[i] = 2.0 * a[i] - 0.5 * b[i];
  const auto layer = [&](const std::vector<double>& x) { return run(problem, experts, {x, {0, 3, 4}, {0.2f, 0.3f, 0.5f}}); };
  const std::vector<double> of_a = layer(a), of_b = layer(b), of_mixed = layer(mixed);
  for (int i = 0; i < 16; ++i) EXPECT_NEAR(of_mixed[i], 2.0 * of_a[i] - 0.5 * of_b[i], 1e-13);
}

TEST(Reference, IsLinearInTheWeights) {
  const Problem problem = small_problem();
  const Experts experts(problem, random_experts(problem, 14));
  Tokens tokens = random_tokens(problem, 6, 15);
  const std::vector<double> once = run(problem, experts, tokens);
  for (float& weight : tokens.topk_weights) weight *= 4.0f;
  const std::vector<double> scaled = run(problem, experts, tokens);
  for (std::size_t i = 0; i < once.size(); ++i) EXPECT_EQ(scaled[i], 4.0 * once[i]);
}

TEST(Reference, RenamingExpertsChangesNothing) {
  const Problem problem = small_problem();
  const std::vector<Expert> experts = random_experts(problem, 16);
  const Tokens tokens = random_tokens(problem, 20, 17);
  const std::array<std::int32_t, 5> new_name = {3, 0, 4, 1, 2};
  std::vector<Expert> renamed(5);
  Tokens renamed_tokens = tokens;
  for (int e = 0; e < 5; ++e) renamed[static_cast<std::size_t>(new_name[e])] = experts[e];
  for (std::int32_t& id : renamed_tokens.topk_ids) id = id < 0 ? id : new_name[static_cast<std::size_t>(id)];
  const std::vector<double> y = run(problem, Experts(problem, experts), tokens);
  const std::vector<double> renamed_y = run(problem, Experts(problem, renamed), renamed_tokens);
  for (std::size_t i = 0; i < y.size(); ++i) EXPECT_NEAR(renamed_y[i], y[i], 1e-13);
}

TEST(Reference, ARepeatedExpertCountsEveryTime) {
  const Problem problem = small_problem();
  const Experts experts(problem, random_experts(problem, 18));
  const std::vector<double> x = random_values(16, 19);
  const std::vector<double> twice = run(problem, experts, {x, {2, 1, 2}, {0.25f, 0.5f, 0.5f}});
  const std::vector<double> once = run(problem, experts, {x, {2, 1, -1}, {0.75f, 0.5f, 0.0f}});
  for (int i = 0; i < 16; ++i) EXPECT_NEAR(twice[i], once[i], 1e-13);
}

// ---- masks, padding, sentinels

TEST(Reference, MinusOneIsNotTheLastExpert) {
  const Problem problem = small_problem();
  std::vector<Expert> experts = random_experts(problem, 20);
  std::fill(experts.back().up.begin(), experts.back().up.end(), kNaN);
  std::fill(experts.back().down.begin(), experts.back().down.end(), kNaN);
  const Experts source(problem, experts);
  const std::vector<double> x = random_values(32, 21);
  const float nan = std::nanf("");
  const std::vector<double> y = run(problem, source, {x, {-1, -1, -1, 1, -1, -1}, {1, nan, 1, 1, nan, 1}});
  for (int i = 0; i < 16; ++i) EXPECT_EQ(y[i], 0.0) << "an all-masked row is exactly 0";
  for (int i = 16; i < 32; ++i) EXPECT_TRUE(std::isfinite(y[i]));
  EXPECT_EQ(source.asked(), std::vector<int>{1});
}

TEST(Reference, PaddingRowsOfNaNAndInfinityTouchNoOtherRow) {
  const Problem problem = small_problem();
  const Experts experts(problem, random_experts(problem, 22));
  Tokens tokens = random_tokens(problem, 30, 23);
  const std::vector<double> clean = run(problem, experts, tokens);
  std::vector<double> poisoned_x(tokens.x.size() * 2);
  Tokens padded{{}, {}, {}};
  for (std::int64_t token = 0; token < 30; ++token) {  // a padding row after every real one, routed like it
    for (int copy = 0; copy < 2; ++copy) {
      for (int i = 0; i < 16; ++i) {
        padded.x.push_back(copy == 0 ? tokens.x[token * 16 + i] : i % 2 == 0 ? kNaN : kInfinity);
      }
      for (int k = 0; k < 3; ++k) {
        padded.topk_ids.push_back(tokens.topk_ids[token * 3 + k]);
        padded.topk_weights.push_back(tokens.topk_weights[token * 3 + k]);
      }
    }
  }
  const std::vector<double> y = run(problem, experts, padded);
  for (std::int64_t token = 0; token < 30; ++token) {
    for (int i = 0; i < 16; ++i) ASSERT_EQ(y[2 * token * 16 + i], clean[token * 16 + i]) << "token " << token;
  }
}

TEST(Reference, ExpertsThatNobodyPicksAreNeverAskedFor) {
  Problem problem = small_problem();
  problem.num_experts = 60;
  const Experts experts(problem, random_experts(problem, 24));
  run(problem, experts, {random_values(16, 25), {59, 7, 33}, {1, 1, 1}}, {}, 2);
  const std::vector<int> asked = experts.asked();
  EXPECT_EQ(std::set<int>(asked.begin(), asked.end()), (std::set<int>{7, 33, 59}));
}

TEST(Reference, TinyWeightsGiveTinyFiniteResults) {
  const Problem problem = small_problem();
  std::vector<Expert> experts = random_experts(problem, 26);
  for (double& value : experts[0].up) value *= 1e-23;
  for (double& value : experts[0].down) value *= 1e-23;
  for (const double value : run(problem, Experts(problem, experts), {random_values(16, 27), {0, -1, -1}, {1, 1, 1}})) {
    EXPECT_LT(std::abs(value), 1e-40);
  }
}

TEST(Reference, IdsOutsideTheExpertsAreRefused) {
  const Problem problem = small_problem();
  const Experts experts(problem, random_experts(problem, 28));
  for (const std::int32_t bad : {-2, 5, 1 << 30, std::numeric_limits<std::int32_t>::min()}) {
    try {
      run(problem, experts, {random_values(32, 29), {0, 1, 2, 3, bad, 4}, {1, 1, 1, 1, 1, 1}});
      FAIL() << bad;
    } catch (const InvalidArgument& error) {
      EXPECT_EQ(std::string(error.what()),
                "topk_ids[1][1] (" + std::to_string(bad) + ") must be -1 (masked) or an expert in 0..4");
    }
  }
  EXPECT_TRUE(experts.asked().empty());
}

TEST(Reference, AMissingBiasIsRefused) {
  Problem problem = small_problem();
  const Experts experts(problem, random_experts(problem, 30));
  const Tokens tokens = random_tokens(problem, 2, 31);
  problem.up_bias = true;
  EXPECT_THROW(run(problem, experts, tokens), InvalidArgument);
  problem.up_bias = false;
  problem.down_bias = true;
  EXPECT_THROW(run(problem, experts, tokens), InvalidArgument);
}

TEST(Reference, NoTokensGiveNoResults) {
  const Problem problem = small_problem();
  EXPECT_TRUE(run(problem, Experts(problem, random_experts(problem, 32)), {{}, {}, {}}, {}, 4).empty());
}

// ---- samples, threads, memory

TEST(Reference, SampledRowsAreTheRowsOfTheWholeBatch) {
  const Problem problem = small_problem();
  const Experts experts(problem, random_experts(problem, 33));
  const Tokens tokens = random_tokens(problem, 300, 34);  // several units of work an expert
  const std::vector<double> whole = run(problem, experts, tokens);
  const std::vector<std::int64_t> rows = {299, 0, 17, 17, 150};
  const std::vector<double> sampled = run(problem, experts, tokens, rows);
  ASSERT_EQ(sampled.size(), rows.size() * 16);
  for (std::size_t r = 0; r < rows.size(); ++r) {
    for (int i = 0; i < 16; ++i) ASSERT_EQ(sampled[r * 16 + i], whole[rows[r] * 16 + i]) << "row " << rows[r];
  }
  EXPECT_THROW(run(problem, experts, tokens, {300}), InvalidArgument);
  EXPECT_THROW(run(problem, experts, tokens, {-1}), InvalidArgument);
}

TEST(Reference, ThreadsChangeNoBit) {
  const Problem problem = small_problem();
  const Experts experts(problem, random_experts(problem, 35));
  const Tokens tokens = random_tokens(problem, 500, 36);
  const std::vector<double> alone = run(problem, experts, tokens);
  for (const int num_threads : {2, 3, 8}) EXPECT_EQ(run(problem, experts, tokens, {}, num_threads), alone);
  EXPECT_THROW(run(problem, experts, tokens, {}, 0), InvalidArgument);
}

// Hands out experts and keeps count of those still held.
class CountedExperts : public ExpertSource {
 public:
  explicit CountedExperts(const Experts& experts) : experts_(experts) {}

  std::shared_ptr<const ExpertParameters> expert(int expert_index) const override {
    if (expert_index == failing_expert) throw Error("expert " + std::to_string(expert_index) + " is gone");
    most_held = std::max<int>(most_held, ++held_);
    const auto held = experts_.expert(expert_index);
    return {held.get(), [held, this](const ExpertParameters*) { --held_; }};
  }

  int failing_expert = -1;
  mutable std::atomic<int> most_held = 0;

 private:
  const Experts& experts_;
  mutable std::atomic<int> held_ = 0;
};

TEST(Reference, HoldsNoMoreExpertsThanThreadsAndAsksInOrder) {
  const Problem problem = small_problem();
  const Experts experts(problem, random_experts(problem, 37));
  const CountedExperts counted(experts);
  run(problem, counted, random_tokens(problem, 40, 38));
  EXPECT_EQ(counted.most_held, 1);
  EXPECT_EQ(experts.asked(), (std::vector<int>{0, 1, 2, 3, 4}));
  run(problem, counted, random_tokens(problem, 40, 38), {}, 2);
  EXPECT_LE(counted.most_held, 2);
}

TEST(Reference, AnExpertThatCannotBeMadeEndsTheRunWithItsError) {
  const Problem problem = small_problem();
  const Experts experts(problem, random_experts(problem, 39));
  CountedExperts counted(experts);
  counted.failing_expert = 2;
  for (const int num_threads : {1, 4}) {
    try {
      run(problem, counted, random_tokens(problem, 40, 40), {}, num_threads);
      FAIL() << "no exception";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("expert 2 is gone"));
    }
  }
}

// ---- comparing

TEST(RelativeL2, IsTheNormOfTheDifferenceOverThatOfTheReference) {
  EXPECT_DOUBLE_EQ(reference::relative_l2({3, 4}, {3, 4}), 0.0);
  EXPECT_DOUBLE_EQ(reference::relative_l2({3, 5}, {3, 4}), 0.2);
  EXPECT_DOUBLE_EQ(reference::relative_l2({0, 0}, {3, 4}), 1.0);
}

TEST(RelativeL2, NothingAndZeroAgainstZeroIsZero) {
  EXPECT_EQ(reference::relative_l2({}, {}), 0.0);
  EXPECT_EQ(reference::relative_l2({0, 0}, {0, 0}), 0.0);
  EXPECT_EQ(reference::max_abs_error({}, {}), 0.0);
}

TEST(RelativeL2, NeverHidesANaNOrAnInfinity) {
  EXPECT_TRUE(std::isnan(reference::relative_l2({1, kNaN}, {1, 2})));
  EXPECT_TRUE(std::isnan(reference::relative_l2({1, 2}, {1, kNaN})));
  EXPECT_TRUE(std::isnan(reference::relative_l2({kInfinity}, {kInfinity})));
  EXPECT_EQ(reference::relative_l2({kInfinity, 1}, {1, 1}), kInfinity);
  EXPECT_EQ(reference::relative_l2({1}, {0}), kInfinity);
  EXPECT_TRUE(std::isnan(reference::max_abs_error({5, kNaN, 1}, {0, 0, 0})));
  EXPECT_EQ(reference::max_abs_error({5, -7, 1}, {0, 1, 0}), 8.0);
}

TEST(ErrorBar, IsWiderWhereFewValuesWereRoundedAndNeverNarrower) {
  constexpr std::int64_t many = 1 << 20;
  EXPECT_DOUBLE_EQ(reference::error_bar(DType::bf16, many), 3e-3);
  EXPECT_DOUBLE_EQ(reference::error_bar(DType::bf16, many, many), 3e-3);
  // One intermediate value: its error is at most half a unit in the last place of 1, the others' as ever.
  const double worst = std::sqrt(0x1p-8 * 0x1p-8 + 2 * 1.66e-3 * 1.66e-3);
  EXPECT_GT(reference::error_bar(DType::bf16, many, 1), worst);
  EXPECT_LT(reference::error_bar(DType::bf16, many, 1), 1.06 * worst);
  for (std::int64_t count = 1; count < many; count *= 3) {
    EXPECT_GE(reference::error_bar(DType::bf16, many, count), reference::error_bar(DType::bf16, many, count * 3));
    EXPECT_GE(reference::error_bar(DType::bf16, count, count), reference::error_bar(DType::bf16, count));
  }
}

TEST(RelativeL2, DifferentLengthsAreRefused) {
  EXPECT_THROW(reference::relative_l2({1}, {1, 2}), InvalidArgument);
  EXPECT_THROW(reference::max_abs_error({1, 2}, {1}), InvalidArgument);
}

}  // namespace
}  // namespace flashmoe::test::plain
