#include "core/thesis_layout.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <string>

namespace flashmoe {
namespace {

Problem thesis_problem(int num_ranks, std::int64_t tokens, int num_experts) {
  return {.num_ranks = num_ranks,
          .hidden = 1024,
          .intermediate = 4096,
          .num_experts = num_experts,
          .top_k = 2,
          .max_tokens = tokens,
          .dtype = DType::fp32,
          .gated = false};
}

TEST(ThesisLayout, reproduces_table_6_2_to_the_megabyte) {
  std::ifstream table("fixtures/thesis_table_6_2_memory.csv");
  ASSERT_TRUE(table) << "run in the tests folder, as ctest does";
  int num_rows = 0;
  for (std::string line; std::getline(table, line);) {
    long tokens = 0;
    int experts = 0;
    long expert_capacity = 0;
    long capacity = 0;
    double size_l_mb = 0;
    if (std::sscanf(line.c_str(), "%ld,%d,%ld,%ld,%*f,%lf", &tokens, &experts, &expert_capacity, &capacity,
                    &size_l_mb) != 5) {
      continue;  // comments and the heading
    }
    ++num_rows;
    for (const int num_ranks : {1, 2, 4, 8}) {
      const ThesisLayout layout = thesis_layout(thesis_problem(num_ranks, tokens, experts));
      EXPECT_EQ(layout.expert_capacity, expert_capacity) << line;
      EXPECT_EQ(layout.capacity, capacity) << line;
      EXPECT_EQ(layout.size_l_bytes >> 20, std::lround(size_l_mb)) << line;
    }
  }
  EXPECT_EQ(num_rows, 12);
}

TEST(ThesisLayout, is_four_token_buffers_where_capacity_fills_whole_tiles) {
  const Problem problem = thesis_problem(8, 16384, 128);
  EXPECT_EQ(thesis_layout(problem).size_l_bytes, 4 * problem.max_tokens * problem.hidden * 4);
}

TEST(ThesisLayout, pads_a_partial_capacity_to_the_next_tile) {
  const ThesisLayout layout = thesis_layout(thesis_problem(4, 1000, 4));  // 250 rows an expert
  EXPECT_EQ(layout.expert_capacity, 250);
  EXPECT_EQ(layout.capacity, 256);
  const ThesisLayout one_token = thesis_layout(thesis_problem(4, 1, 4));
  EXPECT_EQ(one_token.expert_capacity, 1);
  EXPECT_EQ(one_token.capacity, 128);
  EXPECT_EQ(one_token.size_l_bytes, 4 * 4 * 128 * 1024 * 4);
}

TEST(ThesisLayout, holds_the_largest_problem_in_64_bits) {
  const Problem largest = {.num_ranks = Limits::num_ranks,
                           .hidden = Limits::hidden,
                           .intermediate = 8,
                           .num_experts = Limits::num_experts,
                           .top_k = 1,
                           .max_tokens = Limits::max_tokens,
                           .dtype = DType::fp64};
  validate(largest);
  EXPECT_EQ(thesis_layout(largest).size_l_bytes, std::int64_t{1} << 43);
}

}  // namespace
}  // namespace flashmoe
