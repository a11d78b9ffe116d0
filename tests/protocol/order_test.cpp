// The interleaver itself: exact replay, what it says about a group that cannot go on, and long lives of one heap.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "protocol/scenario.hpp"

namespace flashmoe::test {
namespace {

using testing::HasSubstr;

/// All calls of a scenario in one run.
cpu::InterleavedRun run_all(Scenario& it, std::uint64_t order) {
  const auto experts = std::make_shared<DenseExperts>(it.problem, 1, Values::small_integers);
  const auto group = make_group(it, experts);
  poison_group(*group);
  cpu::InterleavedRun run = group->run(inputs_of(it), order);
  EXPECT_TRUE(run.finished) << run.waits;
  EXPECT_TRUE(all_exact(it, *experts));
  return run;
}

TEST(Order, a_seed_replays_every_step_and_another_does_not) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    Scenario it = make_scenario(seed, 3);
    const cpu::InterleavedRun first = run_all(it, seed);
    const cpu::InterleavedRun again = run_all(it, seed);
    const cpu::InterleavedRun other = run_all(it, seed + 1);
    EXPECT_EQ(first.trace, again.trace);
    EXPECT_EQ(first.num_steps, again.num_steps);
    EXPECT_NE(first.trace, other.trace);
  }
}

TEST(Order, what_crosses_the_wire_does_not_depend_on_the_order) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    Scenario it = make_scenario(seed, 3);
    const cpu::InterleavedRun first = run_all(it, 1);
    const cpu::InterleavedRun other = run_all(it, 2);
    for (std::size_t rank = 0; rank < first.traffic.size(); ++rank) {
      EXPECT_EQ(first.traffic[rank].payload_bytes, other.traffic[rank].payload_bytes);
    }
  }
}

/// One rank stays away from the last call: all others must end up waiting for its header, whatever came before.
TEST(Order, a_rank_that_stays_away_leaves_the_others_waiting_for_its_header) {
  int tried = 0;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    Scenario it = make_scenario(seed, 3);
    if (it.problem.num_ranks == 1) continue;
    ++tried;
    SCOPED_TRACE(fmt::format("seed {}: {}", seed, it.to_string()));
    const int absent = static_cast<int>(seed) % it.problem.num_ranks;
    auto calls = inputs_of(it);
    calls[static_cast<std::size_t>(absent)].pop_back();
    const auto experts = std::make_shared<DenseExperts>(it.problem, 1, Values::small_integers);
    const cpu::InterleavedRun run = make_group(it, experts)->run(calls, seed);
    EXPECT_FALSE(run.finished);
    for (int rank = 0; rank < it.problem.num_ranks; ++rank) {
      const Stall& stall = run.stalls[static_cast<std::size_t>(rank)];
      if (rank == absent) {
        EXPECT_EQ(stall.rank, -1);
        continue;
      }
      EXPECT_EQ(stall.rank, rank);
      EXPECT_EQ(stall.wait.signal, SignalKind::header) << run.waits;
      EXPECT_EQ(stall.wait.peer, absent);
      EXPECT_EQ(stall.wait.expected, 2u);
    }
    EXPECT_EQ(explain(run.stalls, 0).wait.peer, absent);
  }
  EXPECT_GT(tried, 200);
}

/// A message that never comes: the group stops, and every actor says what it waits for.
TEST(Order, a_deadlock_is_found_and_described) {
  Scenario it = make_scenario(0, 1);
  for (std::uint64_t seed = 1; it.problem.num_ranks != 2; ++seed) it = make_scenario(seed, 1);
  const auto group = make_group(it, std::make_shared<DenseExperts>(it.problem, 1, Values::small_integers));
  // An epoch that only rank 0 believes in: its tags match nothing.
  group->context(0).make_call().epoch_state().epoch = 7;
  const cpu::InterleavedRun run = group->run(inputs_of(it), 1);
  EXPECT_FALSE(run.finished);
  EXPECT_THAT(run.waits, HasSubstr("rank 0 call 7"));
  EXPECT_THAT(run.waits, HasSubstr("(subscriber): header of rank 1, wanted 7, saw 0"));
  EXPECT_THAT(run.waits, HasSubstr("(subscriber): header of rank 0, wanted 0, saw 0"));
}

TEST(Order, a_wrong_id_stops_its_rank) {
  Scenario it = make_scenario(0, 1);
  for (std::uint64_t seed = 1; it.batches[0].back().num_tokens == 0; ++seed) it = make_scenario(seed, 1);
  it.batches[0].back().topk_ids[0] = it.problem.num_experts;
  const cpu::InterleavedRun run =
      make_group(it, std::make_shared<DenseExperts>(it.problem, 1, Values::small_integers))->run(inputs_of(it), 1);
  EXPECT_FALSE(run.finished);
  const Stall& stall = run.stalls.back();
  EXPECT_EQ(stall.wait.signal, SignalKind::wrong_id);
  EXPECT_EQ(stall.wait.seen, static_cast<std::uint64_t>(it.problem.num_experts));
}

TEST(Order, two_hundred_calls_on_one_heap_need_no_reset) {
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    Scenario it = make_scenario(seed * 7 + 2, 200);
    SCOPED_TRACE(it.to_string());
    run_all(it, seed);
  }
}

}  // namespace
}  // namespace flashmoe::test
