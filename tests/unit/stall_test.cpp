// How ranks agree on who was late, and what their callers are told.
#include "actors/stall.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cpu/heap.hpp"
#include "cpu/fabric.hpp"
#include "flashmoe/error.hpp"

namespace flashmoe {
namespace {

using testing::HasSubstr;

Stall stall_of(int rank, SignalKind signal, int peer, std::uint64_t expected = 0, std::uint64_t seen = 0) {
  return {.rank = rank, .actor = Actor::subscriber, .wait = {signal, peer, expected, seen}};
}
std::vector<Stall> posted(std::initializer_list<Stall> stalls) { return stalls; }
const Stall kSilent{};

TEST(Stall, every_field_survives_the_wire) {
  const Stall stall{.rank = 63, .actor = Actor::combiner,
                    .wait = {SignalKind::result_lines, 62, 0xffffffffffffffffull, 0x123456789abcdefull}};
  std::uint64_t words[kStallWords];
  encode(stall, words);
  const Stall back = decode_stall(words);
  EXPECT_EQ(back.rank, 63);
  EXPECT_EQ(back.actor, Actor::combiner);
  EXPECT_EQ(back.wait.signal, SignalKind::result_lines);
  EXPECT_EQ(back.wait.peer, 62);
  EXPECT_EQ(back.wait.expected, 0xffffffffffffffffull);
  EXPECT_EQ(back.wait.seen, 0x123456789abcdefull);
}

TEST(Explain, a_fault_explains_every_wait) {
  const Stall best = explain(posted({stall_of(0, SignalKind::header, 2), stall_of(1, SignalKind::wrong_id, 1), kSilent}), 0);
  EXPECT_EQ(best.rank, 1);
}

TEST(Explain, a_rank_with_wrong_input_hears_of_its_own_first) {
  const std::vector<Stall> both = posted({stall_of(0, SignalKind::wrong_id, 0), stall_of(1, SignalKind::wrong_count, 1), kSilent});
  for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(explain(both, rank).rank, rank);
  EXPECT_EQ(explain(both, 2).rank, 0);
}

TEST(Explain, a_wait_for_a_silent_rank_comes_before_one_for_a_rank_that_waits_itself) {
  // Rank 0 waits for a list of rank 1, which waits for results of rank 2, which is gone.
  const Stall best = explain(posted({stall_of(0, SignalKind::list, 1), stall_of(1, SignalKind::result_count, 2), kSilent}), 0);
  EXPECT_EQ(best.rank, 1);
  EXPECT_EQ(best.wait.peer, 2);
}

TEST(Explain, a_missing_header_comes_before_missing_results_and_the_lowest_rank_before_its_equals) {
  EXPECT_EQ(explain(posted({stall_of(0, SignalKind::result_lines, 3), stall_of(1, SignalKind::header, 3),
                            stall_of(2, SignalKind::header, 3), kSilent}), 3).rank, 1);
}

TEST(Explain, waits_inside_a_rank_come_last) {
  EXPECT_EQ(explain(posted({stall_of(0, SignalKind::task, 0), stall_of(1, SignalKind::consumed, 0)}), 0).rank, 1);
  EXPECT_EQ(explain(posted({kSilent, kSilent}), 0).rank, -1);
}

TEST(Stall, sentences_say_what_was_wanted_and_got_and_what_to_do) {
  const auto sentence = [](const Stall& stall) { return describe(stall, 2.5, 4, 16); };
  EXPECT_EQ(sentence(stall_of(2, SignalKind::header, 1, 7)),
            "rank 2's subscriber waited 2.5 s for rank 1 to enter call 7, and its header did not come: check that it is "
            "alive and makes the same calls");
  EXPECT_THAT(
      describe(stall_of(2, SignalKind::header, 1, 7), 2.5, 4, 16, true),
      HasSubstr(
          "the same calls, and, as ranks share a GPU, that between their launches nothing synchronises the device or loads "
          "code (a kernel's first use, memory or a layer given back) and no other group runs there"));
  EXPECT_EQ(sentence(stall_of(2, SignalKind::wrong_id, 2, 4 * 10 + 3, static_cast<std::uint64_t>(-5))),
            "topk_ids[10][3] of rank 2 is -5, wanted -1 (masked) or 0..15: check that the ids are global expert ids of this "
            "layer");
  EXPECT_EQ(sentence(stall_of(0, SignalKind::arrival, 3, 10, 4)),
            "rank 0's subscriber waited 2.5 s for arrival of rank 3 (wanted 10, saw 4): rank 3 entered the call and then "
            "stopped; check its own error, or raise the deadline if it is merely slow");
  EXPECT_THAT(sentence(stall_of(0, SignalKind::task, 0)), HasSubstr("inside its own rank"));
  EXPECT_THAT(sentence(stall_of(1, SignalKind::wrong_plan, 0, 1, 2)), HasSubstr("max_tokens of the call must be the same"));
  EXPECT_THAT(sentence(stall_of(1, SignalKind::wrong_layer, 0, 1, 2)), HasSubstr("rank 1 called layer 1 while rank 0 called layer 2"));
  EXPECT_THAT(sentence(stall_of(1, SignalKind::wrong_count, 1, 8, 9)), HasSubstr("num_tokens of rank 1 is 9"));
  EXPECT_THAT(sentence(stall_of(1, SignalKind::rank_failed, 1)), HasSubstr("rank 1 failed"));
}

TEST(Stall, the_exception_depends_on_whose_fault_it_is) {
  const Stall wrong_id = stall_of(1, SignalKind::wrong_id, 1);
  EXPECT_THROW(throw_stall(wrong_id, 1, 1.0, 2, 8), InvalidArgument);
  EXPECT_THROW(throw_stall(wrong_id, 0, 1.0, 2, 8), FabricError);
  EXPECT_THROW(throw_stall(stall_of(1, SignalKind::wrong_count, 1), 1, 1.0, 2, 8), InvalidArgument);
  for (const SignalKind kind : {SignalKind::rank_failed, SignalKind::wrong_layer, SignalKind::wrong_plan}) {
    EXPECT_THROW(throw_stall(stall_of(1, kind, 0), 1, 1.0, 2, 8), FabricError);
  }
  EXPECT_THROW(throw_stall(stall_of(1, SignalKind::header, 0), 1, 1.0, 2, 8), Timeout);
  EXPECT_THROW(throw_stall(stall_of(1, SignalKind::task, 1), 1, 1.0, 2, 8), Timeout);
}

TEST(Stall, faults_waits_on_peers_and_waits_inside_are_told_apart_for_every_kind) {
  for (int kind = 0; kind <= static_cast<int>(SignalKind::none); ++kind) {
    const auto signal = static_cast<SignalKind>(kind);
    EXPECT_EQ(is_fault(signal), kind < static_cast<int>(SignalKind::header)) << to_string(signal);
    EXPECT_EQ(is_remote(signal),
              kind >= static_cast<int>(SignalKind::header) && kind < static_cast<int>(SignalKind::planned));
    EXPECT_FALSE(to_string(signal).empty());
  }
  EXPECT_EQ(to_string(SignalKind::none), "none");
  EXPECT_EQ(to_string(SignalKind::header), "header");
}

TEST(Abort, reaches_every_heap_with_its_record) {
  const Geometry g{.num_ranks = 3, .num_local_experts = 1, .hidden = 8, .intermediate = 8, .top_k = 1, .element_bytes = 2,
                   .max_tokens = 4, .wave_tokens = 4, .wave_ring = 1, .slot_block = 4, .token_block = 4,
                   .num_result_cells = 1, .tile = {4, 8, 8}, .num_m_blocks = 1};
  cpu::Heap heap(g);
  std::vector<Call> calls(3);
  for (int rank = 0; rank < 3; ++rank) {
    Call& call = calls[static_cast<std::size_t>(rank)];
    call.heap = heap.layout();
    std::copy_n(heap.bases(), 3, call.heap_base);
    call.rank = rank;
    call.generation = heap.generation();
    EXPECT_FALSE(aborted(call));
    EXPECT_EQ(posted_stalls(call)[1].rank, -1);
  }
  cpu::Traffic traffic;
  cpu::Fabric fabric(heap.bases(), 1, &traffic);
  raise_abort(calls[1], fabric, stall_of(1, SignalKind::header, 2, 5));
  for (Call& call : calls) {
    EXPECT_TRUE(aborted(call));
    const std::vector<Stall> stalls = posted_stalls(call);
    EXPECT_EQ(stalls[0].rank, -1);
    EXPECT_EQ(stalls[1].wait.peer, 2);
    call.generation = static_cast<std::uint16_t>(call.generation + 1);  // records of an earlier heap do not count
    EXPECT_EQ(posted_stalls(call)[1].rank, -1);
  }
}

}  // namespace
}  // namespace flashmoe
