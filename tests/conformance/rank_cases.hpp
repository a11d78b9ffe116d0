// Reported failures of ranks and routes that differ: see cases.hpp.
#pragma once

#include "conformance/cases.hpp"

namespace flashmoe::test {

template <class Backend>
class RankCases : public Cases<Backend> {};
TYPED_TEST_SUITE_P(RankCases);

// ---- ZERO: no or one token ----------------------------------------------------------------------------------------

TYPED_TEST_P(RankCases, ZERO2_idle_ranks_on_one_buffer_without_barriers) {
  constexpr std::int64_t tokens[4][2] = {{0, 8}, {8, 0}, {8, 8}, {1, 0}};
  run_without_barrier<TypeParam>(problem_of(2, 4, 2, 8), fewer_if_sanitized(200), 5000,
                      [&](int call, std::size_t rank) { return tokens[call % 4][rank]; });
}

TYPED_TEST_P(RankCases, ZERO8_a_rank_whose_experts_get_nothing) {
  const Problem problem = problem_of(2, 4, 2, 64);
  // Experts 0 and 1, of rank 0.
  Group<TypeParam>(problem).check(make_batches(problem, {64, 64}, 1, Routing::all_to_one));
}

TYPED_TEST_P(RankCases, ZERO10_a_rank_with_one_token) {
  const Problem problem = problem_of(2, 32, 8, 64);
  Group<TypeParam>(problem).check(make_batches(problem, {1, 64}, 2));
}

// ---- DESYNC: ranks that differ ------------------------------------------------------------------------------------

TYPED_TEST_P(RankCases, DESYNC1_ranks_with_different_token_counts) {
  const Problem problem = problem_of(2, 8, 2, 64);
  Group<TypeParam>(problem).check(make_batches(problem, {3, 64}, 3));
}

TYPED_TEST_P(RankCases, DESYNC2_odd_token_counts) {
  const Problem problem = problem_of(2, 8, 2, 4096);
  Group<TypeParam> group(problem);
  for (const std::int64_t tokens : {1, 2, 3, 5, 6, 7, 4095, 4096}) {
    group.check(make_batches(problem, {tokens, tokens}, static_cast<std::uint64_t>(tokens)));
  }
  group.check(make_batches(problem, {5, 6}, 4));
}

TYPED_TEST_P(RankCases, DESYNC3_a_rank_that_often_has_nothing_still_takes_part) {
  run_without_barrier<TypeParam>(problem_of(2, 4, 2, 8), fewer_if_sanitized(500), 0, [](int call, std::size_t rank) {
    return rank == 0 ? std::int64_t{8} : std::int64_t{Dice(static_cast<std::uint64_t>(call)).pick({0, 1, 5})};
  });
}

TYPED_TEST_P(RankCases, DESYNC4_chunks_that_are_empty_on_one_rank) {
  Problem whole = problem_of(2, 8, 2, 100);
  whole.wire_form = WireForm::counted;
  Problem chunked = whole;
  chunked.wave_tokens = 32;
  std::vector<Batch> wanted = make_batches(whole, {100, 10}, 5);
  std::vector<Batch> got = wanted;
  Group<TypeParam>(whole).call(wanted);
  Group<TypeParam> group(chunked);
  group.call(got);
  for (std::size_t rank = 0; rank < 2; ++rank) EXPECT_EQ(got[rank].y, wanted[rank].y);
}

TYPED_TEST_P(RankCases, DESYNC6_groups_of_one_rank_do_not_wait_for_each_other) {
  const Problem problem = problem_of(1, 4, 2, 16);
  Group<TypeParam> first(problem), second(problem);
  for (int call = 0; call < 5; ++call) {
    if (call < 3) first.check(make_batches(problem, {16}, 6));
    second.check(make_batches(problem, {16}, 7));
    EXPECT_EQ(second.world().payload_bytes(0) + second.world().overhead_bytes(0), 0u);
  }
}

TYPED_TEST_P(RankCases, DESYNC13_every_small_token_count_with_every_roster) {
  const Problem problem = problem_of(2, 8, 2, 4096);
  const auto experts = std::make_shared<DenseExperts>(problem, 1);
  for (const auto& options : TypeParam::World::variants()) {
    typename TypeParam::World world(problem, experts, options);
    std::vector<std::int64_t> counts{255, 256, 257, 512, 4096};
    for (std::int64_t tokens = 1; tokens <= 130; tokens += kSanitized ? 13 : 1) counts.push_back(tokens);
    for (const std::int64_t tokens : counts) {
      std::vector<Batch> batches = make_batches(problem, {tokens, tokens}, static_cast<std::uint64_t>(tokens));
      world.poison();
      world.call({&batches[0], &batches[1]}, 4096);
      for (std::size_t rank = 0; rank < 2; ++rank) {
        ASSERT_EQ(world.message(rank), "") << tokens << " tokens";
        const auto wanted = reference::layer(problem, *experts, batches[rank].x_view(), batches[rank].routing());
        ASSERT_LE(error_in_bars(problem, batches[rank], wanted), 1.0);
      }
    }
  }
}

// ---- IDS: expert ids ----------------------------------------------------------------------------------------------

TYPED_TEST_P(RankCases, IDS1_masked_routes_and_rows) {
  const Problem problem = problem_of(4, 8, 3, 100);
  std::vector<Batch> batches = make_batches(problem, {100, 100, 7, 0}, 12);
  Dice dice(1);
  for (Batch& batch : batches) {
    for (std::int32_t& id : batch.topk_ids) id = dice.below(10) < 3 ? -1 : id;
  }
  for (std::size_t choice = 0; choice < 3; ++choice) batches[0].topk_ids[3 * 50 + choice] = -1;
  Group<TypeParam> group(problem);
  group.call(batches);
  group.expect_right(batches);
  const Batch masked = slice(problem, batches[0], 50, 51);
  EXPECT_EQ(masked.y, std::vector<char>(masked.y.size(), 0));
}

TYPED_TEST_P(RankCases, IDS2_eight_ranks_compute_what_one_does) {
  Problem one = problem_of(1, 128, 4, 80);
  one.result_form = ResultForm::per_route;
  std::vector<Batch> wanted = make_batches(one, {80}, 13);
  Problem eight = one;
  eight.num_ranks = 8;
  std::vector<Batch> got;
  for (int rank = 0; rank < 8; ++rank) got.push_back(slice(one, wanted[0], 10 * rank, 10 * rank + 10));
  Group<TypeParam>(one).call(wanted);
  Group<TypeParam>(eight).call(got);
  EXPECT_EQ(join(got).y, wanted[0].y);
}

TYPED_TEST_P(RankCases, IDS3_ids_are_global) {
  const Problem problem = problem_of(8, 256, 4, 64);
  Group<TypeParam> group(problem);
  std::vector<Batch> all(8, make_batch(problem, 0, 1));
  all[0] = make_batch(problem, 64, 14);
  std::vector<Batch> only_rank_2 = all;
  for (std::int32_t& id : only_rank_2[0].topk_ids) id = id >= 64 && id < 96 ? id : -1;
  group.check(all);
  group.call(only_rank_2);
  group.expect_right(only_rank_2);
  for (std::size_t rank = 1; rank < 8; ++rank) {
    EXPECT_EQ(group.world().payload_bytes(rank) > 0, rank == 2) << "rank " << rank;
  }
}

REGISTER_TYPED_TEST_SUITE_P(RankCases, ZERO2_idle_ranks_on_one_buffer_without_barriers,
    ZERO8_a_rank_whose_experts_get_nothing,
    ZERO10_a_rank_with_one_token,
    DESYNC1_ranks_with_different_token_counts,
    DESYNC2_odd_token_counts,
    DESYNC3_a_rank_that_often_has_nothing_still_takes_part,
    DESYNC4_chunks_that_are_empty_on_one_rank,
    DESYNC6_groups_of_one_rank_do_not_wait_for_each_other,
    DESYNC13_every_small_token_count_with_every_roster,
    IDS1_masked_routes_and_rows,
    IDS2_eight_ranks_compute_what_one_does,
    IDS3_ids_are_global);

}  // namespace flashmoe::test
