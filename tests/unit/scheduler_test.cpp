// The scheduler alone: which m-blocks it cuts from landed rows, and in which order it publishes their tasks.
#include "actors/scheduler.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "actors/call.hpp"
#include "actors/group.hpp"
#include "support/landed_rank.hpp"

namespace flashmoe {
namespace {

using test::down;
using test::expect_tasks;
using test::kExit;
using test::Landed;
using test::up;

TEST(Scheduler, m_blocks_of_one_expert_alternate_tile_by_tile) {
  Landed rank({10, 3}, 9);
  Scheduler<SoloGroup> scheduler(rank.call);
  expect_tasks(rank.tasks(scheduler), {up(0, 0), up(1, 0), up(2, 0), up(0, 1), up(1, 1), up(2, 1), up(3, 0), up(3, 1),
                                       down(0), down(1), down(2), down(3), kExit});
  const std::vector<std::vector<std::uint32_t>> rows{{0, 0, 4}, {0, 4, 4}, {0, 8, 2}, {1, 10, 3}};
  for (std::uint32_t index = 0; index < rows.size(); ++index) {
    const MBlock& block = rank.call.m_block(index);
    EXPECT_EQ(block.local_expert, rows[index][0]) << index;
    ASSERT_EQ(block.num_segments, 1u) << index;
    EXPECT_EQ(block.segments[0].first_entry, rows[index][1]) << index;
    EXPECT_EQ(block.segments[0].count, rows[index][2]) << index;
    EXPECT_EQ(block.num_rows, rows[index][2]) << index;
    EXPECT_EQ(block.free, 0u) << index;
  }
}

TEST(Scheduler, down_tasks_stay_behind_up_tasks_of_other_m_blocks_while_there_are_some) {
  Landed rank({4, 8, 4, 4}, 8);
  Scheduler<SoloGroup> scheduler(rank.call);
  expect_tasks(rank.tasks(scheduler), {up(0, 0), up(0, 1), up(1, 0), up(2, 0), up(1, 1), up(2, 1), down(0), up(3, 0),
                                       up(3, 1), down(1), down(2), up(4, 0), up(4, 1), down(3), down(4), kExit});
}

TEST(Scheduler, the_last_down_tasks_of_a_call_are_narrow) {
  Landed rank({4, 4, 4}, 8);
  rank.end_narrow(4);
  rank.keep_open();
  rank.call.landed(0)[2] = 0;
  Scheduler<SoloGroup> scheduler(rank.call);
  expect_tasks(rank.tasks(scheduler), {up(0, 0), up(0, 1), up(1, 0), up(1, 1), down(0), down(0, 2), down(1), down(1, 2)});
  rank.call.landed(0)[2] = 4;
  rank.close();
  rank.call.counters().retired_blocks = 2;  // two wide tasks are left, for four processors
  expect_tasks(rank.tasks(scheduler), {up(2, 0), up(2, 1), down(2), down(2, 1), down(2, 2), down(2, 3),
                                       kExit, kExit, kExit, kExit});
}

TEST(Scheduler, all_down_tasks_of_a_call_are_narrow_where_half_of_the_processors_would_have_none) {
  for (const int processors : {3, 4}) {
    Landed rank({4}, 3);
    rank.end_narrow(processors, false);
    Scheduler<SoloGroup> scheduler(rank.call);
    std::vector<Task> wanted{up(0, 0), up(0, 1)};
    if (processors == 4) {
      wanted.insert(wanted.end(), {down(0), down(0, 1), down(0, 2), down(0, 3)});
    } else {
      wanted.insert(wanted.end(), {down(0), down(0, 2)});
    }
    wanted.insert(wanted.end(), static_cast<std::size_t>(processors), kExit);
    expect_tasks(rank.tasks(scheduler), wanted);
  }
}

TEST(Scheduler, the_last_of_many_down_tasks_are_narrow) {
  Landed rank({4, 4, 4, 4, 4}, 8);
  rank.end_narrow(4);
  Scheduler<SoloGroup> scheduler(rank.call);
  std::vector<Task> wanted;
  for (std::uint32_t block = 0; block < 5; ++block) wanted.insert(wanted.end(), {up(block, 0), up(block, 1)});
  for (std::uint32_t block = 0; block < 4; ++block) wanted.insert(wanted.end(), {down(block), down(block, 2)});
  for (std::uint32_t tile = 0; tile < 4; ++tile) wanted.push_back(down(4, tile));
  wanted.insert(wanted.end(), 4, kExit);
  expect_tasks(rank.tasks(scheduler), wanted);
}

TEST(Scheduler, of_down_tasks_for_more_than_one_round_the_last_are_narrow) {
  Landed rank({4, 4, 4}, 8);
  rank.end_narrow(4);
  Scheduler<SoloGroup> scheduler(rank.call);
  std::vector<Task> wanted;
  for (std::uint32_t block = 0; block < 3; ++block) wanted.insert(wanted.end(), {up(block, 0), up(block, 1)});
  for (std::uint32_t block = 0; block < 2; ++block) wanted.insert(wanted.end(), {down(block), down(block, 2)});
  for (std::uint32_t tile = 0; tile < 4; ++tile) wanted.push_back(down(2, tile));
  wanted.insert(wanted.end(), 4, kExit);
  expect_tasks(rank.tasks(scheduler), wanted);
}

TEST(Scheduler, down_tasks_stay_wide_where_they_keep_more_than_half_of_the_processors_busy) {
  for (const int processors : {5, 7}) {  // four wide tasks in one round, twelve in two
    Landed rank(processors == 5 ? std::vector<std::uint32_t>{4, 4} : std::vector<std::uint32_t>{4, 4, 4, 4, 4, 4}, 9);
    rank.end_narrow(processors);
    Scheduler<SoloGroup> scheduler(rank.call);
    int downs = 0;
    for (const Task& task : rank.tasks(scheduler)) {
      if (task.kind != TaskKind::down) continue;
      EXPECT_EQ(task.num_tiles, 2) << processors << " processors, m-block " << task.index;
      ++downs;
    }
    EXPECT_EQ(downs, processors == 5 ? 4 : 12);
  }
}

TEST(Scheduler, down_tasks_stay_wide_where_narrow_ones_end_no_sooner) {
  Landed rank({4, 8}, 8);
  rank.end_narrow(1);
  Scheduler<SoloGroup> scheduler(rank.call);
  expect_tasks(rank.tasks(scheduler), {up(0, 0), up(0, 1), up(1, 0), up(2, 0), up(1, 1), up(2, 1), down(0), down(0, 2),
                                       down(1), down(2), down(1, 2), down(2, 2), kExit});
}

/// Tiles of the up tasks published, m-block by m-block, where a task has both of an m-block unless it is narrow.
std::vector<int> tiles_of_ups(Landed& rank, int processors, bool narrow_ends = false) {
  rank.call.roster.num_processors = processors;
  rank.call.plan.up_tiles = 2;
  rank.call.plan.narrow_ends = narrow_ends;
  Scheduler<SoloGroup> scheduler(rank.call);
  std::vector<int> tiles;
  for (const Task& task : rank.tasks(scheduler)) {
    if (task.kind == TaskKind::up) tiles.push_back(task.num_tiles);
  }
  return tiles;
}

TEST(Scheduler, all_up_tasks_of_a_call_are_narrow_where_they_are_one_round) {
  for (const WireForm form : {WireForm::counted, WireForm::lined}) {
    for (const int processors : {3, 2}) {
      Landed rank({4, 2, 0, 1}, 9);
      rank.call.plan.wire_form = form;
      const bool narrow = processors == 3 && form == WireForm::lined;  // counted, the first round does not know of the others
      EXPECT_EQ(tiles_of_ups(rank, processors).size(), narrow ? 6u : processors == 3 ? 4u : 3u);
    }
  }
}

TEST(Scheduler, up_tasks_of_many_rows_stay_wide) {
  Landed rank({3, 4}, 9);
  rank.call.plan.wire_form = WireForm::lined;
  rank.call.heap.geometry.tile.narrow_rows = 3;
  EXPECT_EQ(tiles_of_ups(rank, 100), (std::vector<int>{1, 1, 2}));
}

TEST(Scheduler, the_last_up_tasks_are_narrow_where_the_last_round_would_leave_half_of_the_processors_idle) {
  Landed six({4, 4, 4, 4, 4, 4}, 9);  // two tasks of four processors are left
  EXPECT_EQ(tiles_of_ups(six, 4, true), (std::vector<int>{2, 2, 2, 2, 2, 1, 1}));
  Landed short_tasks({4, 4, 4, 4, 4, 4}, 9);
  EXPECT_EQ(tiles_of_ups(short_tasks, 4), (std::vector<int>{2, 2, 2, 2, 2, 2}));
  for (const std::size_t full : {7u, 8u}) {  // three of four are left, and four
    Landed rank(std::vector<std::uint32_t>(full, 4), 9);
    EXPECT_EQ(tiles_of_ups(rank, 4, true), std::vector<int>(full, 2));
  }
  Landed one_round({4, 4, 4}, 9);
  EXPECT_EQ(tiles_of_ups(one_round, 4, true), (std::vector<int>{2, 2, 1, 1}));  // known when the last one is cut
}

TEST(Scheduler, cuts_no_more_m_blocks_than_places_are_free) {
  Landed rank({12}, 2);  // so few that m-blocks stand alone
  Scheduler<SoloGroup> scheduler(rank.call);
  expect_tasks(rank.tasks(scheduler), {up(0, 0), up(0, 1), up(1, 0), up(1, 1), down(0), down(1)});
  expect_tasks(rank.tasks(scheduler), {});
  rank.call.m_block(1).free = 1;  // the next place in turn is 0
  expect_tasks(rank.tasks(scheduler), {});
  rank.call.m_block(0).free = 1;
  expect_tasks(rank.tasks(scheduler), {up(0, 0), up(0, 1), down(0), kExit});
  EXPECT_EQ(rank.call.m_block(0).segments[0].first_entry, 8u);
}

TEST(Scheduler, cuts_late_so_that_rows_that_land_meanwhile_share_the_weights) {
  Landed rank({4, 4, 4, 4, 8}, 9);
  rank.call.landed(0)[4] = 4;
  Scheduler<SoloGroup> scheduler(rank.call);
  expect_tasks(rank.tasks(scheduler, 1), {up(0, 0)});
  rank.call.landed(0)[4] = 8;
  expect_tasks(rank.tasks(scheduler), {up(0, 1), up(1, 0), up(1, 1), down(0), up(2, 0), up(2, 1), down(1), up(3, 0),
                                       up(3, 1), down(2), up(4, 0), up(5, 0), up(4, 1), up(5, 1), down(3), down(4),
                                       down(5), kExit});
}

TEST(Scheduler, cuts_long_tasks_still_later_while_rows_land_and_starts_anew_when_all_have) {
  Landed rank({8, 12}, 9);
  rank.make_tasks_long();
  rank.call.landed(0)[0] = rank.call.landed(0)[1] = 4;
  rank.keep_open();
  Scheduler<SoloGroup> scheduler(rank.call);
  expect_tasks(rank.tasks(scheduler, 0), {});  // expert 0's first m-block is enough
  rank.call.landed(0)[0] = 8;
  rank.call.landed(0)[1] = 12;
  rank.close();
  expect_tasks(rank.tasks(scheduler), {up(0, 0), up(0, 1), up(1, 0), up(1, 1), down(0), up(2, 0), up(3, 0), up(4, 0), up(2, 1),
                                       up(3, 1), up(4, 1), down(1), down(2), down(3), down(4), kExit});
}

TEST(Scheduler, what_lands_while_a_pass_waits_joins_the_next_group) {
  Landed rank({4, 16}, 9);
  rank.make_tasks_long();
  rank.call.landed(0)[1] = 4;
  rank.keep_open();
  Scheduler<SoloGroup> scheduler(rank.call);
  expect_tasks(rank.tasks(scheduler, 0), {});
  rank.call.landed(0)[1] = 12;
  rank.keep_open(2);
  for (int step = 0; step < 2; ++step) expect_tasks(rank.tasks(scheduler, 0), {});  // it hears of them, and looks
  rank.call.landed(0)[1] = 16;                                                      // it has not heard of these
  expect_tasks(rank.tasks(scheduler, 2), {up(0, 0), up(0, 1)});
  EXPECT_EQ(rank.call.m_block(1).group_size, 3u);
}

TEST(Scheduler, a_pass_goes_on_when_one_of_several_waves_closes) {
  Landed rank({8, 8}, 9);
  rank.make_tasks_long();
  rank.call.landed(0)[0] = rank.call.landed(0)[1] = 4;
  rank.keep_open();
  Scheduler<SoloGroup> scheduler(rank.call);
  expect_tasks(rank.tasks(scheduler, 0), {});  // expert 0's first m-block is enough
  rank.call.landed(0)[0] = 8;
  rank.keep_open(2, 1);
  expect_tasks(rank.tasks(scheduler, 3), {up(0, 0), up(0, 1), up(1, 0)});
  EXPECT_EQ(rank.call.m_block(1).local_expert, 1u);
}

TEST(Scheduler, down_tasks_keep_their_distance_when_no_place_is_free_until_processors_run_out) {
  Landed rank({4, 4, 4, 4}, 3);
  Scheduler<SoloGroup> scheduler(rank.call);
  expect_tasks(rank.tasks(scheduler, 5), {up(0, 0), up(0, 1), up(1, 0), up(1, 1), down(0)});
  expect_tasks(rank.tasks(scheduler, 1), {up(2, 0)});
  rank.call.m_block(0).free = 1;
  expect_tasks(rank.tasks(scheduler, 5), {up(2, 1), down(1), up(0, 0), up(0, 1), down(2)});
  expect_tasks(rank.tasks(scheduler), {down(0), kExit});
}

TEST(Scheduler, keeps_what_fills_no_tile_while_a_wave_is_open) {
  Landed rank({10}, 9);
  rank.keep_open();
  Scheduler<SoloGroup> scheduler(rank.call);
  expect_tasks(rank.tasks(scheduler), {up(0, 0), up(1, 0), up(0, 1), up(1, 1), down(0), down(1)});
  rank.close();
  expect_tasks(rank.tasks(scheduler), {up(2, 0), up(2, 1), down(2), kExit});
  EXPECT_EQ(rank.call.m_block(2).num_rows, 2u);
}

/// Rows of the m-blocks from place `first` on.
std::vector<std::uint32_t> rows_of_blocks(const Call& call, std::uint32_t first, std::uint32_t end) {
  std::vector<std::uint32_t> rows;
  for (std::uint32_t index = first; index < end; ++index) rows.push_back(call.m_block(index).num_rows);
  return rows;
}

TEST(Scheduler, the_last_rows_of_an_expert_go_with_the_m_block_before_them) {
  Landed rank({5, 9, 6, 1, 4, 10}, 30, 1);
  Scheduler<SoloGroup> scheduler(rank.call);
  rank.tasks(scheduler);
  EXPECT_EQ(rows_of_blocks(rank.call, 0, 10), (std::vector<std::uint32_t>{5, 4, 5, 4, 2, 1, 4, 4, 4, 2}));
}

TEST(Scheduler, rows_that_may_be_the_last_stay_while_a_wave_is_open) {
  Landed rank({4, 9}, 9, 1);
  rank.keep_open();
  Scheduler<SoloGroup> scheduler(rank.call);
  expect_tasks(rank.tasks(scheduler), {up(0, 0), up(1, 0), up(0, 1), up(1, 1), down(0), down(1)});
  EXPECT_EQ(rows_of_blocks(rank.call, 0, 2), (std::vector<std::uint32_t>{4, 5}));
  rank.call.landed(0)[0] = 5;
  rank.close();
  expect_tasks(rank.tasks(scheduler), {up(2, 0), up(2, 1), down(2), kExit});
  EXPECT_EQ(rows_of_blocks(rank.call, 2, 3), (std::vector<std::uint32_t>{5}));
}

}  // namespace
}  // namespace flashmoe
