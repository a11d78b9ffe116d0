// A group of one rank has no header to wait for: its actors must find the end of a call by themselves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "flashmoe/error.hpp"
#include "support/batch.hpp"
#include "support/cpu_world.hpp"

namespace flashmoe::test {
namespace {

/// How its routes are listed: by planners, or at once.
class LoneRank : public testing::TestWithParam<int> {
 protected:
  static Problem problem_of(WireForm wire_form) {
    return {.num_ranks = 1, .hidden = 16, .intermediate = 8, .num_experts = 2, .top_k = 2, .max_tokens = 8,
            .wire_form = wire_form};
  }
  static EngineTraits traits() {
    EngineTraits traits = cpu::engine_traits();
    traits.listed_routes = GetParam();
    return traits;
  }
};

TEST_P(LoneRank, returns_from_calls_without_tokens) {
  for (const WireForm wire_form : {WireForm::counted, WireForm::lined}) {
    const Problem problem = problem_of(wire_form);
    const auto experts = std::make_shared<DenseExperts>(problem, 1);
    CpuWorld world(problem, experts, {}, traits());
    for (const std::int64_t tokens : {0, 3, 0, 8}) {
      Batch batch = make_batch(problem, tokens, 7, Routing::any);
      world.call({&batch}, problem.max_tokens);
      ASSERT_EQ(world.message(0), "") << tokens << " tokens";
      const auto wanted = reference::layer(problem, *experts, batch.x_view(), batch.routing());
      EXPECT_LE(error_in_bars(problem, batch, wanted), 1.0) << tokens << " tokens";
    }
  }
}

TEST_P(LoneRank, is_told_of_a_wrong_id) {
  for (const WireForm wire_form : {WireForm::counted, WireForm::lined}) {
    const Problem problem = problem_of(wire_form);
    CpuWorld world(problem, std::make_shared<DenseExperts>(problem, 1), {}, traits());
    Batch batch = make_batch(problem, 5, 7);
    batch.topk_ids[2 * 3 + 1] = 2;
    world.call({&batch}, problem.max_tokens, 5.0);
    EXPECT_TRUE(world.threw<InvalidArgument>(0));
    EXPECT_THAT(world.message(0), testing::HasSubstr("topk_ids[3][1] of rank 0 is 2, wanted -1 (masked) or 0..1"));
  }
}

INSTANTIATE_TEST_SUITE_P(Lists, LoneRank, testing::Values(0, 100),
                         [](const auto& it) { return it.param == 0 ? "by_planners" : "from_ids"; });

}  // namespace
}  // namespace flashmoe::test
