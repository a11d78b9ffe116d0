// A group of one rank has no header to wait for: its actors must find the end of a call by themselves.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "support/batch.hpp"
#include "support/cpu_world.hpp"

namespace flashmoe::test {
namespace {

TEST(LoneRank, returns_from_calls_without_tokens) {
  for (const WireForm wire_form : {WireForm::counted, WireForm::lined}) {
    const Problem problem{.num_ranks = 1, .hidden = 16, .intermediate = 8, .num_experts = 2, .top_k = 2, .max_tokens = 8,
                          .wire_form = wire_form};
    const auto experts = std::make_shared<DenseExperts>(problem, 1);
    CpuWorld world(problem, experts);
    for (const std::int64_t tokens : {0, 3, 0}) {
      Batch batch = make_batch(problem, tokens, 7, Routing::any);
      const std::vector<Batch*> batches{&batch};
      world.call(batches, problem.max_tokens);
      ASSERT_EQ(world.message(0), "") << tokens << " tokens";
    }
  }
}

}  // namespace
}  // namespace flashmoe::test
