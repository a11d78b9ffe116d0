// M-blocks filled from counts of routes are those filled from rows that have landed.
#include "actors/m_blocks.hpp"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <memory>
#include <vector>

namespace flashmoe {
namespace {

/// Rank 1 of three, with two wave slots a source; a tile has 4 rows, its last may have 2 more.
class Cutting {
 public:
  static constexpr int kRanks = 3;
  static constexpr int kRing = 2;
  static constexpr int kExperts = 5;

  Cutting() {
    const Geometry geometry{.num_ranks = kRanks, .num_local_experts = kExperts, .hidden = 16, .intermediate = 32, .top_k = 1,
                            .element_bytes = 4, .max_tokens = 64, .wave_tokens = 64, .wave_ring = kRing, .slot_block = 64,
                            .token_block = 64, .num_result_cells = 1,
                            .tile = {.rows = 4, .up_columns = 16, .down_columns = 16, .extra_rows = 2}, .num_m_blocks = 9};
    call.heap.geometry = geometry;
    call.rank = 1;
    call.roster = {.num_dispatchers = 1, .num_processors = 1};
    call.local_layout = make_local_layout(geometry, call.roster);
    memory_ = std::make_unique<char[]>(call.local_layout.total_bytes);
    call.local = memory_.get();
    for (std::uint32_t index = 0; index < 9; ++index) call.m_block(index) = MBlock{};
  }

  Call call;

 private:
  std::unique_ptr<char[]> memory_;
};

RC_GTEST_PROP(MBlocks, of_counts_are_those_of_landed_rows, ()) {
  const auto counts =
      *rc::gen::container<std::vector<std::uint32_t>>(Cutting::kRanks * Cutting::kExperts, rc::gen::inRange(0u, 13u));
  const auto slots = *rc::gen::container<std::vector<int>>(Cutting::kRanks, rc::gen::inRange(0, Cutting::kRing));
  const std::uint32_t before = *rc::gen::element(0u, 7u, ~0u - 3, ~0u);  // rows of the waves before: counters wrap
  const std::uint32_t place = *rc::gen::inRange(0u, 9u);
  std::vector<std::uint32_t> firsts(counts.size());
  std::vector<int> wave_slots(slots);
  Cutting landed;
  Cutting counted;
  for (int source = 0; source < Cutting::kRanks; ++source) {
    wave_slots[static_cast<std::size_t>(source)] += source * Cutting::kRing;
    std::uint32_t entries = 0;
    for (int expert = 0; expert < Cutting::kExperts; ++expert) {
      const auto at = static_cast<std::size_t>(source * Cutting::kExperts + expert);
      firsts[at] = entries;
      for (int slot = source * Cutting::kRing; slot < (source + 1) * Cutting::kRing; ++slot) {
        const bool used = slot == wave_slots[static_cast<std::size_t>(source)];
        landed.call.expert_offsets(slot)[expert] = used ? entries : 77;
        landed.call.wave_base(slot)[expert] = before;
        landed.call.landed(slot)[expert] = before + (used ? counts[at] : 0);
        landed.call.taken(slot)[expert] = counted.call.taken(slot)[expert] = before;
      }
      entries += counts[at];
    }
  }
  const int expert = *rc::gen::inRange(0, Cutting::kExperts);
  std::uint32_t rows = 0;
  for (int source = 0; source < Cutting::kRanks; ++source) {
    rows += counts[static_cast<std::size_t>(source * Cutting::kExperts + expert)];
  }
  RC_PRE(rows > 0);
  const std::uint32_t blocks = m_blocks_of(landed.call.geometry().tile, rows);
  const RowsByCounts by_counts{counts.data() + expert, firsts.data() + expert, wave_slots.data(), Cutting::kExperts,
                              Cutting::kRing};
  ExpertCut cut{expert, place, blocks, rows, false, false};
  RC_ASSERT(fill_m_blocks(landed.call, cut, RowsByCursors(landed.call, expert, true)) == rows);
  cut.early = true;
  RC_ASSERT(fill_m_blocks(counted.call, cut, by_counts) == rows);
  for (std::uint32_t index = 0; index < 9; ++index) {
    const MBlock& a = landed.call.m_block(index);
    const MBlock& b = counted.call.m_block(index);
    RC_ASSERT(a.num_rows == b.num_rows && a.num_segments == b.num_segments && a.group_offset == b.group_offset &&
              a.group_size == b.group_size && a.local_expert == b.local_expert && a.free == b.free);
    RC_ASSERT(a.cut_early == 0u);
    RC_ASSERT(b.cut_early == (b.num_rows > 0 ? 1u : 0u));
    for (std::uint32_t i = 0; i < a.num_segments; ++i) {
      RC_ASSERT(a.segments[i].wave_slot == b.segments[i].wave_slot && a.segments[i].first_entry == b.segments[i].first_entry &&
                a.segments[i].count == b.segments[i].count && a.segments[i].landed == b.segments[i].landed);
      // Once its last row has landed, and not before.
      const std::uint32_t offset = landed.call.expert_offsets(static_cast<int>(a.segments[i].wave_slot))[expert];
      RC_ASSERT(a.segments[i].landed - before == a.segments[i].first_entry + a.segments[i].count - offset);
    }
  }
  for (int slot = 0; slot < Cutting::kRanks * Cutting::kRing; ++slot) {
    RC_ASSERT(landed.call.taken(slot)[expert] == counted.call.taken(slot)[expert]);
    RC_ASSERT(landed.call.taken(slot)[expert] == landed.call.landed(slot)[expert]);
  }
}

TEST(MBlocks, narrow_up_tasks_follow_from_how_many_the_call_has) {
  Cutting cutting;
  Call& call = cutting.call;  // two up tiles an m-block
  call.heap.geometry.tile.narrow_rows = 3;
  call.plan.up_tiles = 2;
  call.roster.num_processors = 8;
  EXPECT_TRUE(narrow_ups_are_better(call, {.rows = 3, .of_call = 8, .cut = 8, .from_here = 1}));   // one round
  EXPECT_FALSE(narrow_ups_are_better(call, {.rows = 4, .of_call = 8, .cut = 8, .from_here = 1}));  // too many rows
  EXPECT_FALSE(narrow_ups_are_better(call, {.rows = 3, .of_call = 9, .cut = 9, .from_here = 1}));
  EXPECT_FALSE(narrow_ups_are_better(call, {.rows = 3, .of_call = 0, .cut = 4, .from_here = 0}));  // more may come
  call.plan.narrow_ends = true;
  EXPECT_TRUE(narrow_ups_are_better(call, {.rows = 3, .of_call = 10, .cut = 10, .from_here = 2}));   // two in the last round
  EXPECT_FALSE(narrow_ups_are_better(call, {.rows = 3, .of_call = 10, .cut = 10, .from_here = 9}));  // not one of those
  EXPECT_FALSE(narrow_ups_are_better(call, {.rows = 3, .of_call = 16, .cut = 16, .from_here = 2}));  // it is full
  call.plan.narrow_ups = true;
  EXPECT_TRUE(narrow_ups_are_better(call, {.rows = 3, .of_call = 16, .cut = 16, .from_here = 2}));
  EXPECT_FALSE(narrow_ups_are_better(call, {.rows = 4, .of_call = 16, .cut = 16, .from_here = 2}));
}

TEST(MBlocks, up_tasks_have_half_a_tile_where_all_of_a_call_are_no_more_than_processors) {
  Cutting cutting;
  Call& call = cutting.call;  // two up tiles an m-block
  call.roster.num_processors = 16;
  const auto chosen = [&](std::uint32_t rows, std::uint32_t of_call, std::uint32_t from_here = 1) {
    TaskBatch ups{.kind = TaskKind::up};
    choose_ups(call, {.rows = rows, .of_call = of_call, .cut = 4, .from_here = from_here}, ups);
    return std::pair(ups.narrow, ups.halved);
  };
  EXPECT_EQ(chosen(3, 4), std::pair(true, false));  // an engine that has no half tiles
  call.heap.geometry.tile.half_rows = 3;
  EXPECT_EQ(chosen(3, 4), std::pair(true, true));
  EXPECT_EQ(chosen(4, 4), std::pair(true, false));  // too many rows
  EXPECT_EQ(chosen(3, 5), std::pair(true, false));  // more tasks than processors
  EXPECT_EQ(chosen(3, 0), std::pair(false, false)); // more may come
  // Of several rounds the last m-blocks, if it is known which those are.
  EXPECT_EQ(chosen(3, 8, 4), std::pair(true, false));
  EXPECT_EQ(chosen(3, 9, 4), std::pair(true, true));
  EXPECT_EQ(chosen(3, 9, 5), std::pair(false, false));
  EXPECT_EQ(chosen(3, 9, 0), std::pair(false, false));
  EXPECT_EQ(chosen(4, 9, 4), std::pair(false, false));
  call.plan.tickets_at_once = 2;
  EXPECT_EQ(chosen(3, 4), std::pair(true, false));
}

TEST(MBlocks, rows_are_tagged_where_up_tiles_are_one_round) {
  Cutting cutting;
  Call& call = cutting.call;  // two up tiles an m-block
  call.roster.num_processors = 8;
  EXPECT_FALSE(tagged_rows_are_better(call, 1, 4));  // an engine that has no tagged rows
  call.heap.geometry.tile.tagged_rows = 3;
  EXPECT_TRUE(tagged_rows_are_better(call, 3, 4));
  EXPECT_FALSE(tagged_rows_are_better(call, 4, 4));
  EXPECT_FALSE(tagged_rows_are_better(call, 3, 5));
}

TEST(MBlocks, processors_get_out_of_step_in_the_first_of_several_rounds_of_many_m_blocks) {
  Cutting cutting;
  Call& call = cutting.call;  // two up tiles an m-block
  call.heap.geometry.tile.narrow_rows = 3;
  call.plan.up_tiles = 2;
  call.roster.num_processors = 16;
  EXPECT_TRUE(begins_out_of_step(call, 3, 0, 32));
  EXPECT_TRUE(begins_out_of_step(call, 3, 14, 32));
  EXPECT_FALSE(begins_out_of_step(call, 3, 13, 32));  // the others are wide
  EXPECT_FALSE(begins_out_of_step(call, 3, 16, 32));  // the second round
  EXPECT_FALSE(begins_out_of_step(call, 4, 0, 32));   // too many rows
  EXPECT_FALSE(begins_out_of_step(call, 3, 0, 31));   // not two rounds
  call.plan.up_tiles = 1;
  EXPECT_FALSE(begins_out_of_step(call, 3, 0, 32));   // eight m-blocks a round
}

TEST(MBlocks, narrow_down_tasks_follow_from_how_many_are_under_way) {
  Cutting cutting;
  Call& call = cutting.call;
  const auto tasks = static_cast<std::uint64_t>(call.geometry().num_down_tiles());  // an m-block
  call.plan.down_tiles = 1;
  call.roster.num_processors = static_cast<int>(8 * tasks);
  EXPECT_TRUE(narrow_downs_are_better(call, {.first = 0, .cut = 4, .retired = 0}));   // half are idle
  EXPECT_FALSE(narrow_downs_are_better(call, {.first = 0, .cut = 5, .retired = 0}));
  EXPECT_FALSE(narrow_downs_are_better(call, {.first = 9, .cut = 10, .retired = 0}));  // tasks are short
  call.plan.narrow_ends = true;
  EXPECT_TRUE(narrow_downs_are_better(call, {.first = 4, .cut = 10, .retired = 0}));   // a second round of two
  EXPECT_FALSE(narrow_downs_are_better(call, {.first = 3, .cut = 10, .retired = 0}));  // not the last ones
  EXPECT_FALSE(narrow_downs_are_better(call, {.first = 4, .cut = 10, .retired = 4}));  // one round, of six
  EXPECT_TRUE(narrow_downs_are_better(call, {.first = 4, .cut = 10, .retired = 6}));   // of four
  EXPECT_TRUE(narrow_downs_are_better(call, {.first = 14, .cut = 20, .retired = 3}));  // after two rounds
}

TEST(MBlocks, down_tasks_of_the_last_two_rounds_are_halved) {
  Cutting cutting;
  Call& call = cutting.call;
  call.plan.down_tiles = 2;  // one task an m-block
  call.roster.num_processors = 8;
  const auto chosen = [&](std::uint64_t first, std::uint64_t cut) {
    TaskBatch downs{.kind = TaskKind::down};
    choose_downs(call, {.first = first, .cut = cut, .retired = 0}, downs);
    return std::pair(downs.narrow, downs.halved);
  };
  EXPECT_EQ(chosen(39, 40), std::pair(false, false));  // a plan without
  call.plan.halved_down_tiles = 1;
  EXPECT_EQ(chosen(23, 40), std::pair(false, false));
  EXPECT_EQ(chosen(24, 40), std::pair(false, true));
  EXPECT_EQ(chosen(0, 5), std::pair(false, true));
  EXPECT_EQ(chosen(0, 4), std::pair(true, false));  // where half are idle, one tile each
}

}  // namespace
}  // namespace flashmoe
