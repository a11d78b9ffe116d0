// Every rule of RouterConfig, with its message.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "flashmoe/error.hpp"
#include "flashmoe/router.hpp"

namespace flashmoe {
namespace {

std::string message_of(const RouterConfig& config) {
  try {
    validate(config);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "accepted";
}

struct Rule {
  std::string name;
  RouterConfig config;
  std::string message;
};

class RouterRule : public testing::TestWithParam<Rule> {};

TEST_P(RouterRule, SaysWhatWasWantedAndGot) { EXPECT_EQ(message_of(GetParam().config), GetParam().message); }

constexpr RouterConfig kGrouped = {.function = RouterFunction::sigmoid_grouped, .num_experts = 32, .top_k = 4,
                                   .num_groups = 8, .topk_groups = 4};

RouterConfig with(RouterConfig config, auto change) {
  change(config);
  return config;
}

INSTANTIATE_TEST_SUITE_P(
    , RouterRule,
    testing::Values(
        Rule{"function", {.function = static_cast<RouterFunction>(77), .num_experts = 8, .top_k = 2},
             "router function (number 77) must be one of softmax_topk, topk_softmax, sigmoid_grouped, sigmoid_topk, "
             "softmax_group_limited, sparsemixer"},
        Rule{"no_experts", {.num_experts = 0, .top_k = 1}, "num_experts (0) of the router must be in 1..4096"},
        Rule{"many_experts", {.num_experts = 4097, .top_k = 1}, "num_experts (4097) of the router must be in 1..4096"},
        Rule{"no_choice", {.num_experts = 8, .top_k = 0}, "top_k (0) of the router must be in 1..32"},
        Rule{"many_choices", {.num_experts = 64, .top_k = 33}, "top_k (33) of the router must be in 1..32"},
        Rule{"more_choices_than_experts", {.num_experts = 8, .top_k = 9}, "top_k (9) must be at most num_experts (8)"},
        Rule{"no_scale", {.num_experts = 8, .top_k = 2, .scaling_factor = 0},
             "scaling_factor (0) must be above 0 and at most 1e6"},
        Rule{"nan_scale", {.num_experts = 8, .top_k = 2, .scaling_factor = __builtin_nan("")},
             "scaling_factor (nan) must be above 0 and at most 1e6"},
        Rule{"no_groups", with(kGrouped, [](auto& config) { config.num_groups = 0; }),
             "num_groups (0) must be a divisor of num_experts (32), 1 for no groups"},
        Rule{"uneven_groups", with(kGrouped, [](auto& config) { config.num_groups = 5; }),
             "num_groups (5) must be a divisor of num_experts (32), 1 for no groups"},
        Rule{"no_kept_group", with(kGrouped, [](auto& config) { config.topk_groups = 0; }),
             "topk_groups (0) must be in 1..num_groups (8)"},
        Rule{"more_kept_than_groups", with(kGrouped, [](auto& config) { config.topk_groups = 9; }),
             "topk_groups (9) must be in 1..num_groups (8)"},
        Rule{"one_expert_groups", with(kGrouped, [](auto& config) { config.num_groups = 32; }),
             "num_groups (32) must leave at least 2 of the num_experts (32) to a group, since sigmoid_grouped ranks "
             "groups by their two best"},
        Rule{"groups_too_few", with(kGrouped, [](auto& config) { config.topk_groups = 1, config.top_k = 5; }),
             "top_k (5) must be at most the 4 experts of the topk_groups (1) groups kept; keep more groups"},
        Rule{"groups_of_a_function_without", {.num_experts = 8, .top_k = 2, .num_groups = 4},
             "num_groups (4) and topk_groups (1) must be 1 with softmax_topk, which has no groups: use sigmoid_grouped or "
             "softmax_group_limited, or leave them out"},
        Rule{"kept_groups_of_a_function_without",
             {.function = RouterFunction::sparsemixer, .num_experts = 8, .top_k = 2, .topk_groups = 2},
             "num_groups (1) and topk_groups (2) must be 1 with sparsemixer, which has no groups: use sigmoid_grouped or "
             "softmax_group_limited, or leave them out"},
        Rule{"band_of_a_function_without", {.num_experts = 8, .top_k = 2, .jitter_epsilon = -1},
             "jitter_epsilon (-1) goes with router function sparsemixer, got softmax_topk: leave it out"},
        Rule{"sparsemixer_choices", {.function = RouterFunction::sparsemixer, .num_experts = 8, .top_k = 3},
             "top_k (3) must be 2 with sparsemixer, which is defined for two choices"},
        Rule{"sparsemixer_band",
             {.function = RouterFunction::sparsemixer, .num_experts = 8, .top_k = 2, .jitter_epsilon = -0.5},
             "jitter_epsilon (-0.5) must be a finite number, 0 or more"}),
    [](const auto& test) { return test.param.name; });

TEST(RouterConfig, PublishedModelsAreAccepted) {
  const std::vector<RouterConfig> configs = {
      {.num_experts = 8, .top_k = 2, .renormalize = true},
      {.num_experts = 1, .top_k = 1},
      {.function = RouterFunction::sigmoid_grouped, .num_experts = 256, .top_k = 8, .renormalize = true,
       .scaling_factor = 2.5, .num_groups = 8, .topk_groups = 4},
      {.function = RouterFunction::softmax_group_limited, .num_experts = 160, .top_k = 6, .scaling_factor = 16.0,
       .num_groups = 8, .topk_groups = 3},
      {.function = RouterFunction::sigmoid_topk, .num_experts = 16, .top_k = 1},
      {.function = RouterFunction::sparsemixer, .num_experts = 16, .top_k = 2}};
  for (const RouterConfig& config : configs) EXPECT_EQ(message_of(config), "accepted");
}

TEST(RouterConfig, NamesParseBackAndOthersListTheAcceptedOnes) {
  for (int i = 0; i < 6; ++i) {
    const auto function = static_cast<RouterFunction>(i);
    EXPECT_EQ(parse_router_function(to_string(function)), function);
  }
  try {
    parse_router_function("softmaxx");
    FAIL() << "no exception";
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(),
                 "router function (softmaxx) must be one of softmax_topk, topk_softmax, sigmoid_grouped, sigmoid_topk, "
                 "softmax_group_limited, sparsemixer");
  }
}

}  // namespace
}  // namespace flashmoe
