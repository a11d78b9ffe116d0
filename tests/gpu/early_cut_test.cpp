// M-blocks that the Hopper engine cuts before rows land (src/cuda/hopper/early_cut.cuh) give the bits that the scheduler's give, in
// both wire forms, for one rank and for several, for as many m-blocks as may be and for more; and no rank waits for one that is
// late, wrong or absent.
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "device.hpp"
#include "flashmoe/error.hpp"
#include "support/cuda_world.hpp"

namespace flashmoe::test {
namespace {

struct Shape {
  int num_ranks;
  int num_experts;
  int top_k;
  std::int64_t num_tokens;
  Routing routing = Routing::any;
  WireForm wire_form = WireForm::counted;
  bool weight_on_input = false;
  bool gated = true;
  int intermediate = 160;
  int wave_ring = 0;
  bool fits = true;  ///< its m-blocks are few enough to be cut early
};

Problem problem_of(const Shape& shape) {
  return {.num_ranks = shape.num_ranks, .hidden = 192, .intermediate = shape.intermediate, .num_experts = shape.num_experts,
          .top_k = shape.top_k, .max_tokens = shape.num_tokens, .dtype = DType::bf16, .gated = shape.gated,
          .weight_on_input = shape.weight_on_input, .wire_form = shape.wire_form, .result_form = ResultForm::per_route,
          .wave_ring = shape.wave_ring};
}

/// So many idle steps that no scheduler refuses, however late the ranks of a call are launched.
constexpr int kPatient = 100'000'000;

/// Every rank's batch of every call; ranks have different numbers of tokens, and sometimes none.
std::vector<Batch> run(const Shape& shape, const std::shared_ptr<DenseExperts>& experts, bool early_cut) {
  const Problem problem = problem_of(shape);
  const auto ranks = static_cast<std::size_t>(problem.num_ranks);
  CudaWorld world(problem, experts, {.deadline_seconds = 5.0, .flush_after_idle_steps = kPatient, .early_cut = early_cut});
  EXPECT_EQ(world.plan_of(problem.max_tokens).tickets_at_once, CudaWorld::in_pairs() ? 2 : 1) << "pairs are not cut early";
  const std::int64_t most = problem.max_tokens;
  const std::int64_t tokens[] = {most, most / 3, 1, most, 0, most - 1};
  constexpr std::size_t kCalls = 5;
  std::vector<Batch> batches;
  batches.reserve(kCalls * ranks);
  for (std::size_t call = 0; call < kCalls; ++call) {
    std::vector<Batch*> of_call;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      batches.push_back(make_batch(problem, tokens[(call + rank) % std::size(tokens)], batches.size(), shape.routing));
      of_call.push_back(&batches.back());
    }
    world.poison();
    world.call(of_call, most);
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      EXPECT_EQ(world.message(rank), "") << to_string(problem);
      if (shape.fits) {
        EXPECT_EQ(world.cut_early(rank), early_cut && !CudaWorld::in_pairs()) << "call " << call;
      } else if (call == 0) {
        EXPECT_FALSE(world.cut_early(rank));
      }
    }
  }
  return batches;
}

void expect_the_bits_of_the_schedulers_m_blocks(const std::vector<Shape>& shapes) {
  for (const Shape& shape : shapes) {
    SCOPED_TRACE(fmt::format("{} ranks, {} experts, top_k {}, {} tokens", shape.num_ranks, shape.num_experts, shape.top_k,
                             shape.num_tokens));
    const Problem problem = problem_of(shape);
    const auto experts = std::make_shared<DenseExperts>(problem, 3);
    const std::vector<Batch> early = run(shape, experts, true);
    const std::vector<Batch> late = run(shape, experts, false);
    for (std::size_t i = 0; i < early.size(); ++i) {
      EXPECT_EQ(early[i].y, late[i].y) << "batch " << i;
      Batch batch = early[i];
      const auto wanted = reference::layer(problem, *experts, batch.x_view(), batch.routing());
      EXPECT_LE(error_in_bars(problem, batch, wanted), 1.0) << "batch " << i;
    }
  }
}

constexpr auto kLined = WireForm::lined;
constexpr auto kCounted = WireForm::counted;

TEST(EarlyCut, gives_the_bits_of_the_schedulers_m_blocks) {
  FLASHMOE_REQUIRE_GPUS(1);
  if (!runs_on_hopper(problem_of({1, 9, 2, 100}))) GTEST_SKIP() << "engine portable has the scheduler's m-blocks alone";
  expect_the_bits_of_the_schedulers_m_blocks({
      {1, 9, 2, 1},
      {1, 128, 8, 8, Routing::distinct, kLined},
      {1, 128, 8, 64, Routing::distinct},
      {1, 300, 5, 200, Routing::masked, kCounted, true},                                 // more experts than threads
      {1, 16, 1, 2000, Routing::all_to_one},                                              // as many m-blocks as alternate
      {1, 64, 1, 8192, Routing::all_to_one, kCounted, false, true, 160, 0, false},        // more
      {1, 700, 8, 1024, Routing::distinct, kCounted, false, true, 160, 0, false},         // more than places
      {2, 128, 8, 16, Routing::any, kLined},
      {2, 128, 8, 1024, Routing::distinct},
      {2, 16, 2, 900, Routing::any, kCounted, true, false},
      {2, 8, 2, 300, Routing::last_rank, kCounted, false, true, 160, 1},                  // ring of one wave
      {2, 8, 2, 300, Routing::any, kCounted, false, true, 160, 4},
      {4, 36, 11, 90, Routing::last_rank},
      {8, 64, 4, 333, Routing::any},
      {8, 64, 4, 7, Routing::any, kLined},
      {2, 16, 2, 33, Routing::any, kCounted, false, true, 4096},                          // long down tasks
  });
}

TEST(EarlyCut, gives_them_in_small_layers) {
  FLASHMOE_REQUIRE_GPUS(1);
  if (!runs_on_hopper(problem_of({1, 9, 2, 100}))) GTEST_SKIP() << "engine portable has the scheduler's m-blocks alone";
  expect_the_bits_of_the_schedulers_m_blocks({
      {1, 9, 2, 16, Routing::any, kLined},
      {2, 8, 2, 40, Routing::all_to_one, kLined, true},
      {3, 6, 2, 50, Routing::masked},
  });
}

/// So late that the other's scheduler has refused: it waits for ids no longer than it would for rows.
TEST(EarlyCut, a_rank_that_is_late_only_delays) {
  FLASHMOE_REQUIRE_GPUS(1);
  for (const WireForm wire_form : {kCounted, kLined}) {
    const Problem problem = problem_of({2, 8, 2, 60, Routing::any, wire_form});
    const auto experts = std::make_shared<DenseExperts>(problem, 3);
    CudaWorld world(problem, experts, {.deadline_seconds = 5.0});
    std::vector<Batch> batches = make_batches(problem, {60, 60}, 1);
    for (const auto late : {std::chrono::milliseconds(0), std::chrono::milliseconds(20), std::chrono::milliseconds(0)}) {
      world.poison();
      world.each_rank([&](std::size_t rank) {
        if (rank == 1) std::this_thread::sleep_for(late);
        world.forward(rank, batches[rank], 60);
      });
      for (const std::size_t rank : {0u, 1u}) ASSERT_EQ(world.message(rank), "");
      for (Batch& batch : batches) {
        const auto wanted = reference::layer(problem, *experts, batch.x_view(), batch.routing());
        EXPECT_LE(error_in_bars(problem, batch, wanted), 1.0);
      }
    }
  }
}

TEST(EarlyCut, a_rank_that_gives_up_while_rows_are_on_their_way_ends_the_call_of_all) {
  FLASHMOE_REQUIRE_GPUS(1);
  for (const WireForm wire_form : {kCounted, kLined}) {
    const Problem problem = problem_of({3, 9, 2, 60, Routing::any, wire_form});
    const auto experts = std::make_shared<DenseExperts>(problem, 3);
    CudaWorld world(problem, experts, {.deadline_seconds = 5.0});
    std::vector<Batch> batches = make_batches(problem, {60, 60, 60}, 1);
    batches[1].topk_ids[2 * 59 + 1] = 9;  // its ids may go, and so may some of its rows
    world.call({&batches[0], &batches[1], &batches[2]}, 60);
    EXPECT_TRUE(world.threw<InvalidArgument>(1));
    batches[1].topk_ids[2 * 59 + 1] = 0;
    world.call({&batches[0], &batches[1], &batches[2]}, 60);  // the others may have returned from that call, not from the next
    for (const std::size_t rank : {0u, 2u}) {
      EXPECT_THAT(world.message(rank), ::testing::HasSubstr("topk_ids[59][1] of rank 1 is 9"));
    }
  }
}

/// Nobody's last ids come: who counts them does not wait when its rank gives up.
TEST(EarlyCut, ranks_that_all_have_a_wrong_id_are_all_told) {
  FLASHMOE_REQUIRE_GPUS(1);
  for (const WireForm wire_form : {kCounted, kLined}) {
    const Problem problem = problem_of({3, 9, 2, 60, Routing::any, wire_form});
    const auto experts = std::make_shared<DenseExperts>(problem, 3);
    CudaWorld world(problem, experts, {.deadline_seconds = 5.0, .flush_after_idle_steps = kPatient});
    std::vector<Batch> batches = make_batches(problem, {60, 60, 60}, 1);
    for (Batch& batch : batches) batch.topk_ids[2 * 59 + 1] = 9;
    world.call({&batches[0], &batches[1], &batches[2]}, 60);
    for (const std::size_t rank : {0u, 1u, 2u}) EXPECT_TRUE(world.threw<InvalidArgument>(rank)) << world.message(rank);
  }
}

TEST(EarlyCut, a_rank_with_a_wrong_id_does_not_wait_for_one_that_never_comes) {
  FLASHMOE_REQUIRE_GPUS(1);
  for (const WireForm wire_form : {kCounted, kLined}) {
    const Problem problem = problem_of({3, 9, 2, 60, Routing::any, wire_form});
    const auto experts = std::make_shared<DenseExperts>(problem, 3);
    CudaWorld world(problem, experts, {.deadline_seconds = 1.0, .flush_after_idle_steps = kPatient});
    std::vector<Batch> batches = make_batches(problem, {60, 60, 60}, 1);
    batches[0].topk_ids[2 * 59 + 1] = 9;
    world.call({&batches[0], nullptr, &batches[2]}, 60);
    EXPECT_TRUE(world.threw<InvalidArgument>(0)) << world.message(0);
    EXPECT_NE(world.message(2), "");
  }
}

}  // namespace
}  // namespace flashmoe::test
