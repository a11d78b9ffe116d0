// Memory of a rank, against sums by hand.
#include "planner/rank_memory.hpp"

#include <gtest/gtest.h>

namespace flashmoe {
namespace {

TEST(RankMemory, is_heap_scratch_weights_and_the_tensors_of_the_largest_call) {
  Problem problem{.num_ranks = 2, .hidden = 64, .intermediate = 32, .num_experts = 6, .top_k = 2, .max_tokens = 10};
  // bf16, gated: an expert has 64 x 64 and 64 x 32 elements; a token 64 elements in x and in y, 2 ids and 2 weights.
  const std::uint64_t weights = 3 * (64 * 64 + 64 * 32) * 2;
  const std::uint64_t tensors = 10 * (2 * 64 * 2 + 2 * 8);
  EXPECT_EQ(rank_memory_bytes(problem, 1000, 10), 1010 + weights + tensors);
  problem.up_bias = true;
  problem.down_bias = true;
  EXPECT_EQ(rank_memory_bytes(problem, 0, 0), weights + tensors + 3 * (64 + 64) * 4) << "biases are fp32";
}

}  // namespace
}  // namespace flashmoe
