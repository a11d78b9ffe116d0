#include "flashmoe/problem.hpp"

#include <gmock/gmock.h>

#include <functional>
#include <set>

#include "core/enumerators.hpp"
#include "flashmoe/error.hpp"
#include "unit/problem_rules.hpp"

namespace flashmoe {
namespace {

using testing::ThrowsMessage;

class ProblemRules : public testing::TestWithParam<ProblemRule> {};

TEST_P(ProblemRules, breaking_one_gives_its_sentence) {
  EXPECT_THAT([] { validate(GetParam().problem); }, ThrowsMessage<InvalidArgument>(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(Problem, ProblemRules, testing::ValuesIn(problem_rules()),
                         [](const auto& rule) { return rule.param.name; });

TEST(Problem, limits_themselves_are_accepted) {
  validate({.num_ranks = Limits::num_ranks,
            .hidden = Limits::hidden,
            .intermediate = Limits::intermediate,
            .num_experts = Limits::num_experts,
            .top_k = Limits::top_k,
            .max_tokens = Limits::max_tokens,
            .wave_tokens = Limits::wave_tokens,
            .wave_ring = Limits::wave_ring});
  validate({.num_ranks = 1, .hidden = 8, .intermediate = 8, .num_experts = 1, .top_k = 1, .max_tokens = 1});
}

TEST(Problem, every_choice_within_the_rules_is_accepted) {
  for (const DType dtype : kDTypes) {
    for (const Activation activation : kActivations) {
      for (const bool gated : {true, false}) {
        for (const bool weight_on_input : {true, false}) {
          Problem problem = valid_problem();
          problem.dtype = dtype;
          problem.activation = activation;
          problem.gated = gated || activation == Activation::swiglu_clamped;
          problem.weight_on_input = weight_on_input;
          problem.up_bias = gated;
          problem.down_bias = weight_on_input;
          EXPECT_NO_THROW(validate(problem)) << to_string(problem);
        }
      }
    }
  }
  for (const WireForm wire_form : kWireForms) {
    for (const ResultForm result_form : kResultForms) {
      Problem problem = valid_problem();
      problem.wire_form = wire_form;
      problem.result_form = result_form;
      if (wire_form == WireForm::lined && result_form == ResultForm::pre_reduced) continue;
      problem.batch_invariant = result_form != ResultForm::pre_reduced;
      EXPECT_NO_THROW(validate(problem)) << to_string(problem);
    }
  }
}

TEST(Problem, shape_helpers_count_gate_and_up_and_local_experts) {
  Problem problem = valid_problem();
  EXPECT_EQ(problem.num_local_experts(), 2);
  EXPECT_EQ(problem.up_columns(), 192);
  problem.gated = false;
  EXPECT_EQ(problem.up_columns(), 96);
  EXPECT_EQ(Problem{.num_ranks = 0}.num_local_experts(), 0);
}

/// One change per field of Problem, each to another valid value.
const std::vector<std::function<void(Problem&)>> kFieldChanges = {
    [](Problem& p) { p.num_ranks = 2; },
    [](Problem& p) { p.hidden = 72; },
    [](Problem& p) { p.intermediate = 104; },
    [](Problem& p) { p.num_experts = 12; },
    [](Problem& p) { p.top_k = 3; },
    [](Problem& p) { p.max_tokens = 129; },
    [](Problem& p) { p.dtype = DType::fp16; },
    [](Problem& p) { p.activation = Activation::relu; },
    [](Problem& p) { p.gated = false; },
    [](Problem& p) { p.up_bias = true; },
    [](Problem& p) { p.down_bias = true; },
    [](Problem& p) { p.weight_on_input = true; },
    [](Problem& p) { p.swiglu_alpha = 1.703; },
    [](Problem& p) { p.swiglu_limit = 7.5; },
    [](Problem& p) { p.wire_form = WireForm::counted; },
    [](Problem& p) { p.result_form = ResultForm::per_route; },
    [](Problem& p) { p.wave_tokens = 64; },
    [](Problem& p) { p.wave_ring = 2; },
    [](Problem& p) { p.batch_invariant = true; },
};

TEST(Problem, ranks_that_differ_in_any_field_differ_in_hash_and_text) {
  std::set<std::uint64_t> hashes = {hash(valid_problem())};
  std::set<std::string> texts = {to_string(valid_problem())};
  for (const auto& change : kFieldChanges) {
    Problem problem = valid_problem();
    change(problem);
    ASSERT_NO_THROW(validate(problem)) << to_string(problem);
    ASSERT_NE(problem, valid_problem());
    EXPECT_TRUE(hashes.insert(hash(problem)).second) << to_string(problem);
    EXPECT_TRUE(texts.insert(to_string(problem)).second) << to_string(problem);
  }
}

TEST(Problem, fields_that_swap_values_change_the_hash) {
  Problem one = valid_problem();
  Problem other = valid_problem();
  one.hidden = other.intermediate = 128;
  one.intermediate = other.hidden = 256;
  EXPECT_NE(hash(one), hash(other));
}

TEST(Problem, equal_problems_hash_equal) {
  EXPECT_EQ(hash(valid_problem()), hash(valid_problem()));
  Problem plus = valid_problem();
  Problem minus = valid_problem();
  plus.swiglu_alpha = 0.0;
  minus.swiglu_alpha = -0.0;
  ASSERT_EQ(plus, minus);
  EXPECT_EQ(hash(plus), hash(minus));
}

TEST(Problem, text_is_one_line_with_every_field) {
  EXPECT_EQ(to_string(valid_problem()),
            "num_ranks=4 hidden=64 intermediate=96 num_experts=8 top_k=2 max_tokens=128 dtype=bf16 activation=silu "
            "gated=true up_bias=false down_bias=false weight_on_input=false swiglu_alpha=1.702 swiglu_limit=7 "
            "wire_form=auto result_form=auto wave_tokens=0 wave_ring=0 batch_invariant=false");
}

}  // namespace
}  // namespace flashmoe
