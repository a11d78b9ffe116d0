// The list of a rank's own routes that the Hopper engine makes at once (src/cuda/hopper/own_list.cuh) gives the bits that
// planners' lists give, up to its limits and past them, and for ids that are masked, repeated or all the same.
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cuda/hopper/tile_shape.hpp"
#include "device.hpp"
#include "flashmoe/error.hpp"
#include "support/cuda_world.hpp"

namespace flashmoe::test {
namespace {

/// Tokens of a wave: a call of more has several, and therefore planners.
constexpr std::int64_t kPlannedWave = 16;

struct Shape {
  int num_experts;
  int top_k;
  std::int64_t num_tokens;
  Routing routing = Routing::any;
  bool weight_on_input = false;
};

Problem problem_of(const Shape& shape, std::int64_t wave_tokens) {
  return {.num_ranks = 1, .hidden = 64, .intermediate = 32, .num_experts = shape.num_experts, .top_k = shape.top_k,
          .max_tokens = shape.num_tokens, .dtype = DType::bf16, .weight_on_input = shape.weight_on_input,
          .wire_form = WireForm::counted, .wave_tokens = wave_tokens};
}

std::vector<Batch> run(const Problem& problem, const std::shared_ptr<DenseExperts>& experts, Routing routing) {
  CudaWorld world(problem, experts, {.deadline_seconds = 5.0});
  std::vector<Batch> batches;
  for (const std::int64_t tokens : {problem.max_tokens, problem.max_tokens / 3, std::int64_t{1}, problem.max_tokens}) {
    batches.push_back(make_batch(problem, tokens, static_cast<std::uint64_t>(batches.size()), routing));
    world.poison();
    world.call({&batches.back()}, problem.max_tokens);
    EXPECT_EQ(world.message(0), "") << to_string(problem);
  }
  return batches;
}

TEST(OwnList, gives_the_bits_of_planners_lists) {
  FLASHMOE_REQUIRE_GPUS(1);
  if (!runs_on_hopper(problem_of({9, 2, 100}, 0))) GTEST_SKIP() << "engine portable has planners' lists alone";
  using cuda_backend::hopper::listed_routes;
  ASSERT_EQ(listed_routes(256), 8192);
  ASSERT_GT(listed_routes(2175), 0);
  ASSERT_EQ(listed_routes(2176), 0);
  const Shape shapes[] = {{1, 1, 300},
                          {5, 3, 77},
                          {128, 8, 64, Routing::distinct},
                          {128, 8, 1024, Routing::masked},
                          {128, 8, 1025},  // a route too many
                          {129, 7, 501, Routing::any, true},
                          {256, 8, 600, Routing::all_to_one},
                          {257, 4, 200},
                          {600, 3, 200, Routing::masked, true},
                          {2175, 4, 333},
                          {2176, 4, 333}};
  for (const Shape& shape : shapes) {
    SCOPED_TRACE(fmt::format("{} experts, top_k {}, {} tokens", shape.num_experts, shape.top_k, shape.num_tokens));
    const Problem whole = problem_of(shape, 0);
    const auto experts = std::make_shared<DenseExperts>(whole, 3);
    const std::vector<Batch> listed = run(whole, experts, shape.routing);
    const std::vector<Batch> planned = run(problem_of(shape, kPlannedWave), experts, shape.routing);
    for (std::size_t call = 0; call < listed.size(); ++call) {
      EXPECT_EQ(listed[call].y, planned[call].y) << "call " << call;
      Batch batch = listed[call];
      const auto wanted = reference::layer(whole, *experts, batch.x_view(), batch.routing());
      EXPECT_LE(error_in_bars(whole, batch, wanted), 1.0) << "call " << call;
    }
  }
}

TEST(OwnList, of_a_wrong_id_its_caller_is_told) {
  FLASHMOE_REQUIRE_GPUS(1);
  const Problem problem = problem_of({9, 2, 100}, 0);
  for (const std::int32_t id : {9, -2}) {
    CudaWorld world(problem, std::make_shared<DenseExperts>(problem, 3), {.deadline_seconds = 5.0});
    Batch batch = make_batch(problem, 100, 1);
    batch.topk_ids[2 * 70 + 1] = id;
    world.call({&batch}, 100);
    EXPECT_TRUE(world.threw<InvalidArgument>(0));
    EXPECT_THAT(world.message(0), ::testing::HasSubstr(fmt::format("topk_ids[70][1] of rank 0 is {}, wanted", id)));
  }
}

}  // namespace
}  // namespace flashmoe::test
