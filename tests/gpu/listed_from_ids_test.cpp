// Lists that the Hopper engine makes from ids (Call::listed_from_ids; src/cuda/hopper/list_maker.cuh, early_push.cuh) give the bits
// that planners' lists give, up to their limits and past them, for one rank and for several, and for ids that are masked, repeated
// or all the same; whether consumers push the rows, or dispatchers do.
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
  int num_ranks = 1;
};

Problem problem_of(const Shape& shape, std::int64_t wave_tokens) {
  return {.num_ranks = shape.num_ranks, .hidden = 64, .intermediate = 32, .num_experts = shape.num_experts, .top_k = shape.top_k,
          .max_tokens = shape.num_tokens, .dtype = DType::bf16, .weight_on_input = shape.weight_on_input,
          .wire_form = WireForm::counted, .result_form = ResultForm::per_route, .wave_tokens = wave_tokens};
}

/// Every rank's batch of every call; ranks have different numbers of tokens, and sometimes none.
std::vector<Batch> run(const Problem& problem, const std::shared_ptr<DenseExperts>& experts, Routing routing,
                       bool early_push = true) {
  const auto ranks = static_cast<std::size_t>(problem.num_ranks);
  CudaWorld world(problem, experts, {.deadline_seconds = 5.0, .early_push = early_push});
  const std::int64_t most = problem.max_tokens;
  const std::int64_t tokens[] = {most, most / 3, 1, most, 0, most - 1};
  constexpr std::size_t kCalls = 4;
  std::vector<Batch> batches;
  for (std::size_t call = 0; call < kCalls; ++call) {
    std::vector<Batch*> of_call;
    batches.reserve(kCalls * ranks);
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      batches.push_back(make_batch(problem, tokens[(call + rank) % std::size(tokens)], batches.size(), routing));
      of_call.push_back(&batches.back());
    }
    world.poison();
    world.call(of_call, most);
    for (std::size_t rank = 0; rank < ranks; ++rank) EXPECT_EQ(world.message(rank), "") << to_string(problem);
  }
  return batches;
}

void expect_the_bits_of_planners_lists(const Shape& shape) {
  SCOPED_TRACE(fmt::format("{} ranks, {} experts, top_k {}, {} tokens", shape.num_ranks, shape.num_experts, shape.top_k,
                           shape.num_tokens));
  const Problem whole = problem_of(shape, 0);
  const auto experts = std::make_shared<DenseExperts>(whole, 3);
  const std::vector<Batch> listed = run(whole, experts, shape.routing);
  const std::vector<Batch> planned = run(problem_of(shape, kPlannedWave), experts, shape.routing);
  for (std::size_t i = 0; i < listed.size(); ++i) {
    EXPECT_EQ(listed[i].y, planned[i].y) << "batch " << i;
    Batch batch = listed[i];
    const auto wanted = reference::layer(whole, *experts, batch.x_view(), batch.routing());
    EXPECT_LE(error_in_bars(whole, batch, wanted), 1.0) << "batch " << i;
  }
  if (shape.num_ranks == 1) return;
  const std::vector<Batch> by_dispatchers = run(whole, experts, shape.routing, false);
  for (std::size_t i = 0; i < listed.size(); ++i) EXPECT_EQ(listed[i].y, by_dispatchers[i].y) << "batch " << i;
}

TEST(ListedFromIds, gives_the_bits_of_planners_lists) {
  FLASHMOE_REQUIRE_GPUS(1);
  if (!runs_on_hopper(problem_of({9, 2, 100}, 0))) GTEST_SKIP() << "engine portable has planners' lists alone";
  using cuda_backend::hopper::listed_routes;
  ASSERT_EQ(listed_routes(1, 256), 16384);
  ASSERT_EQ(listed_routes(2, 256), 8192);
  ASSERT_EQ(listed_routes(1, 1151), 16384);
  ASSERT_EQ(listed_routes(1, 1152), 0);
  const Shape shapes[] = {{1, 1, 300},
                          {5, 3, 77},
                          {128, 8, 64, Routing::distinct},
                          {128, 8, 2048, Routing::masked},
                          {128, 8, 2049},  // a route too many
                          {129, 7, 501, Routing::any, true},
                          {256, 8, 600, Routing::all_to_one},
                          {40, 11, 130, Routing::distinct},
                          {40, 32, 256, Routing::distinct, true},
                          {257, 4, 200},
                          {600, 3, 200, Routing::masked, true},
                          {1151, 4, 333},
                          {1152, 4, 333}};
  for (const Shape& shape : shapes) expect_the_bits_of_planners_lists(shape);
}

TEST(ListedFromIds, gives_them_to_every_rank) {
  FLASHMOE_REQUIRE_GPUS(1);
  if (!runs_on_hopper(problem_of({9, 2, 100}, 0))) GTEST_SKIP() << "engine portable has planners' lists alone";
  const Shape shapes[] = {{128, 8, 1024, Routing::distinct, false, 2},
                          {128, 8, 1024, Routing::masked, true, 2},
                          {6, 1, 8192, Routing::any, false, 2},
                          {130, 8, 1025, Routing::any, false, 2},  // a route too many
                          {6, 2, 50, Routing::all_to_one, true, 3},
                          {36, 11, 90, Routing::last_rank, false, 4},
                          {64, 4, 333, Routing::any, false, 8}};
  for (const Shape& shape : shapes) expect_the_bits_of_planners_lists(shape);
}

TEST(ListedFromIds, of_a_wrong_id_its_caller_is_told_and_others_at_the_latest_in_their_next_call) {
  FLASHMOE_REQUIRE_GPUS(1);
  for (const int num_ranks : {1, 2}) {
    const Problem problem = problem_of({10, 2, 100, Routing::any, false, num_ranks}, 0);
    for (const std::int32_t id : {10, -2, 1 << 30}) {
      CudaWorld world(problem, std::make_shared<DenseExperts>(problem, 3), {.deadline_seconds = 5.0});
      Batch batch = make_batch(problem, 100, 1);
      Batch other = make_batch(problem, 100, 2);
      batch.topk_ids[2 * 70 + 1] = id;
      const std::vector<Batch*> of_call{&batch, &other};
      world.call({of_call.begin(), of_call.begin() + num_ranks}, 100);
      EXPECT_TRUE(world.threw<InvalidArgument>(0));
      EXPECT_THAT(world.message(0), ::testing::HasSubstr(fmt::format("topk_ids[70][1] of rank 0 is {}, wanted", id)));
      if (num_ranks == 1) continue;
      batch.topk_ids[2 * 70 + 1] = 0;  // the other rank may have returned from that call, but not from the next
      world.call({&batch, &other}, 100);
      EXPECT_THAT(world.message(1), ::testing::HasSubstr(fmt::format("topk_ids[70][1] of rank 0 is {}", id)));
    }
  }
}

}  // namespace
}  // namespace flashmoe::test
