// The reference layer against the layer's formula taken literally, for every kind of layer.
#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

#include "cpu/reference.hpp"
#include "flashmoe/types.hpp"
#include "support/plain_layer.hpp"

namespace flashmoe::test::plain {
namespace {

using Case = std::tuple<DType, Activation, bool, bool>;  // dtype, activation, gated, biases and weight on input

std::string case_name(const testing::TestParamInfo<Case>& test) {
  const auto& [dtype, activation, gated, extras] = test.param;
  return std::string(to_string(dtype)) + "_" + std::string(to_string(activation)) + (gated ? "_gated" : "_plain") +
         (extras ? "_biased_weight_on_input" : "");
}

class ReferenceFormula : public testing::TestWithParam<Case> {};

TEST_P(ReferenceFormula, MatchesTheDirectFormula) {
  const auto [dtype, activation, gated, extras] = GetParam();
  Problem problem = small_problem();
  problem.dtype = dtype;
  problem.activation = activation;
  problem.gated = gated;
  problem.up_bias = problem.down_bias = problem.weight_on_input = extras;
  problem.swiglu_limit = 1.5;  // so that both clamps act
  const std::vector<Expert> experts = random_experts(problem, 3);
  const Tokens tokens = random_tokens(problem, 9, 4);
  const std::vector<double> y = run(problem, Experts(problem, experts), tokens);
  ASSERT_EQ(y.size(), 9u * 16u);
  for (std::int64_t token = 0; token < 9; ++token) {
    const std::vector<double> expected = direct(problem, experts, tokens, token);
    for (int i = 0; i < problem.hidden; ++i) {
      EXPECT_NEAR(y[token * problem.hidden + i], expected[i], 1e-13) << "token " << token << " element " << i;
    }
  }
}

constexpr auto kEveryDType = {DType::bf16, DType::fp16, DType::tf32, DType::fp32, DType::fp64};
INSTANTIATE_TEST_SUITE_P(Every, ReferenceFormula,
                         testing::Combine(testing::ValuesIn(kEveryDType),
                                          testing::Values(Activation::silu, Activation::gelu_erf, Activation::gelu_tanh,
                                                          Activation::relu, Activation::relu_squared,
                                                          Activation::identity),
                                          testing::Bool(), testing::Bool()),
                         case_name);
INSTANTIATE_TEST_SUITE_P(OnlyGated, ReferenceFormula,
                         testing::Combine(testing::ValuesIn(kEveryDType), testing::Values(Activation::swiglu_clamped),
                                          testing::Values(true), testing::Bool()),
                         case_name);

TEST(Reference, AnyExpertCountMatchesTheDirectFormula) {
  for (const int num_experts : {1, 8, 64, 160, 257, 512, 896}) {
    Problem problem = small_problem();
    problem.num_experts = num_experts;
    problem.top_k = 4;
    const std::vector<Expert> experts = random_experts(problem, 5);
    Tokens tokens = random_tokens(problem, 3, 6);
    tokens.topk_ids[0] = num_experts - 1;
    const std::vector<double> y = run(problem, Experts(problem, experts), tokens);
    for (std::int64_t token = 0; token < 3; ++token) {
      const std::vector<double> expected = direct(problem, experts, tokens, token);
      for (int i = 0; i < problem.hidden; ++i) EXPECT_NEAR(y[token * problem.hidden + i], expected[i], 1e-13);
    }
  }
}

TEST(Reference, UpHalfStartsRightAfterTheGateHalf) {
  for (const int intermediate : {88, 176, 352, 704, 1856}) {
    Problem problem = small_problem();
    problem.hidden = 8;
    problem.intermediate = intermediate;
    const std::vector<Expert> experts = random_experts(problem, 7);
    const Tokens tokens = random_tokens(problem, 1, 8);
    const std::vector<double> y = run(problem, Experts(problem, experts), tokens);
    const std::vector<double> expected = direct(problem, experts, tokens, 0);
    for (int i = 0; i < problem.hidden; ++i) EXPECT_NEAR(y[i], expected[i], 1e-12) << intermediate;
  }
}

}  // namespace
}  // namespace flashmoe::test::plain
