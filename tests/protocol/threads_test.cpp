// The same actors with real threads, one an actor: what ThreadSanitizer watches.
#include <gtest/gtest.h>

#include <algorithm>

#include "support/cpu_world.hpp"
#include "support/dice.hpp"
#include "support/sanitized.hpp"

namespace flashmoe::test {
namespace {

struct Forms {
  WireForm wire;
  ResultForm result;
  int num_ranks = 3;
};

class Threads : public testing::TestWithParam<Forms> {};

/// Ranks run ahead of each other over two hundred calls; with wire form automatic, calls change the form. A rank that is alone
/// lists its routes at once where they are few; of a few tokens combiners take parts.
TEST_P(Threads, two_hundred_calls_on_one_heap_are_exact_with_one_thread_an_actor) {
  const Problem problem{.num_ranks = GetParam().num_ranks, .hidden = 128, .intermediate = 16, .num_experts = 24, .top_k = 2,
                        .max_tokens = 150,
                        .dtype = DType::fp64, .activation = Activation::relu, .gated = false,
                        .wire_form = GetParam().wire, .result_form = GetParam().result, .wave_tokens = 40, .wave_ring = 2};
  const auto experts = std::make_shared<DenseExperts>(problem, 1, Values::small_integers);
  CpuWorld world(problem, experts,
                 {.roster = {.num_dispatchers = 2,
                             .num_processors = 2,
                             .num_subscribers = std::min(2, problem.num_ranks),
                             .num_helpers = 8},
                  .num_threads = 0,
                  .flush_after_idle_steps = 3},
                 {.tile = {.rows = 4, .up_columns = 8, .down_columns = 8}, .num_m_blocks = 3, .listed_routes = 80});
  world.poison();
  world.each_rank([&](std::size_t rank) {
    for (int call = 0; call < fewer_if_sanitized(200); ++call) {
      Dice dice(static_cast<std::uint64_t>(call) * 8 + rank);
      const std::int64_t max_tokens = Dice(static_cast<std::uint64_t>(call)).one_in(4) ? 150 : 24;
      const Routing routing = dice.pick({Routing::any, Routing::any, Routing::all_to_one, Routing::last_rank});
      const int most = dice.one_in(3) ? 10 : static_cast<int>(max_tokens);
      Batch batch = make_batch(problem, dice.one_in(3) ? 0 : dice.between(0, most),
                               static_cast<std::uint64_t>(call) * 8 + rank, routing, Values::small_integers);
      world.forward(rank, batch, max_tokens, 60.0);
      ASSERT_EQ(batch.output(problem), reference::layer(problem, *experts, batch.x_view(), batch.routing()))
          << "call " << call << " rank " << rank;
    }
  });
  for (int rank = 0; rank < problem.num_ranks; ++rank) EXPECT_EQ(world.message(static_cast<std::size_t>(rank)), "");
}

INSTANTIATE_TEST_SUITE_P(Forms, Threads,
                         testing::Values(Forms{WireForm::counted, ResultForm::per_route},
                                         Forms{WireForm::counted, ResultForm::pre_reduced},
                                         Forms{WireForm::lined, ResultForm::per_route},
                                         Forms{WireForm::automatic, ResultForm::per_route},
                                         Forms{WireForm::counted, ResultForm::per_route, 1},
                                         Forms{WireForm::counted, ResultForm::pre_reduced, 1},
                                         Forms{WireForm::automatic, ResultForm::per_route, 1}),
                         [](const auto& it) {
                           return std::string(to_string(it.param.wire)) + "_" + std::string(to_string(it.param.result)) +
                                  (it.param.num_ranks == 1 ? "_alone" : "");
                         });

/// A rank given up on while its actors run on many threads: the abort reaches all of them.
TEST(Aborts, reach_every_thread) {
  const Problem problem{.num_ranks = 3, .hidden = 16, .intermediate = 16, .num_experts = 6, .top_k = 2, .max_tokens = 60,
                        .wire_form = WireForm::counted, .wave_tokens = 10};
  CpuWorld world(problem, std::make_shared<DenseExperts>(problem, 1),
                 {.roster = {.num_dispatchers = 2, .num_processors = 2, .num_subscribers = 2}, .num_threads = 0});
  Batch one = make_batch(problem, 60, 1);
  Batch two = make_batch(problem, 60, 2);
  world.call({&one, &two, nullptr}, 60, 0.3);
  EXPECT_NE(world.message(0).find("for rank 2 to enter call 0"), std::string::npos) << world.message(0);
  EXPECT_NE(world.message(1).find("for rank 2 to enter call 0"), std::string::npos) << world.message(1);
}

}  // namespace
}  // namespace flashmoe::test
