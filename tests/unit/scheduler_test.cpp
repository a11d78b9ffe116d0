// The scheduler alone: which m-blocks it cuts from landed rows, and in which order it publishes their up tasks.
#include "actors/scheduler.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <vector>

#include "actors/call.hpp"
#include "actors/group.hpp"
#include "support/lanes.hpp"

namespace flashmoe {
namespace {

/// One rank whose only wave has landed: `rows[e]` rows of expert e, tiles of 4 rows, two up tiles an m-block.
class Landed {
 public:
  Landed(const std::vector<std::uint32_t>& rows, int num_m_blocks, int extra_rows = 0) {
    const Geometry geometry{.num_ranks = 1, .num_local_experts = static_cast<int>(rows.size()), .hidden = 16,
                            .intermediate = 32, .top_k = 1, .element_bytes = 4, .max_tokens = 64, .wave_tokens = 64,
                            .wave_ring = 1, .slot_block = 64, .token_block = 64, .num_result_cells = 1,
                            .tile = {.rows = 4, .up_columns = 16, .down_columns = 16, .extra_rows = extra_rows},
                            .num_m_blocks = num_m_blocks};
    call.heap.geometry = geometry;
    call.roster = {.num_dispatchers = 1, .num_processors = 1};
    call.local_layout = make_local_layout(geometry, call.roster);
    call.flush_after_idle_steps = 1000;
    memory_ = std::make_unique<char[]>(call.local_layout.total_bytes);
    call.local = memory_.get();
    for (int index = 0; index < num_m_blocks; ++index) call.m_block(static_cast<std::uint32_t>(index)) = MBlock{};
    std::uint32_t entries = 0;
    for (std::size_t expert = 0; expert < rows.size(); ++expert) {
      call.expert_offsets(0)[expert] = entries;
      call.landed(0)[expert] = rows[expert];
      entries += rows[expert];
    }
    cursor_ = call.task_ring().first();
    ticket_ = call.task_ring().claim();
    close();
  }

  void close() { tell({.version = 0, .closed_waves = kAllWavesClosed}); }
  /// Rows have landed, and more may come.
  void keep_open(std::uint32_t version = 1, std::uint32_t closed_waves = 0) {
    tell({.version = version, .closed_waves = closed_waves});
  }

  /// Steps the scheduler until it has nothing to do, and takes what it published, up to `most` tasks; and again, while
  /// there is anything.
  template <class Group>
  std::vector<Task> tasks(Scheduler<Group>& scheduler, std::size_t most = 1000, const Group& group = {}) {
    std::vector<Task> taken;
    std::size_t before = 1000;
    while (taken.size() != before) {
      before = taken.size();
      while (scheduler.step(group) == Step::advanced) before = 1000;
      Task task;
      for (int look = 0; look < 4; ++look) {  // one look may end between batches
        while (taken.size() < most && call.task_ring().find(ticket_, cursor_, task)) {
          taken.push_back(task);
          ticket_ = call.task_ring().claim();
        }
      }
    }
    return taken;
  }

  /// All tasks published so far.
  std::vector<Task> published() {
    std::vector<Task> taken;
    Task task;
    for (int look = 0; look < 200; ++look) {
      while (call.task_ring().find(ticket_, cursor_, task)) {
        taken.push_back(task);
        ticket_ = call.task_ring().claim();
      }
    }
    return taken;
  }

  /// Tasks of so much work that one a processor is enough ahead while rows land; an m-block has one down tile.
  void make_tasks_long() { call.heap.geometry.hidden = call.heap.geometry.tile.down_columns = 4096; }

  /// An m-block has four down tiles, two a task or, where that ends the call sooner, one.
  void end_narrow(int processors, bool narrow_ends = true) {
    call.roster.num_processors = processors;
    call.heap.geometry.hidden = 64;
    call.plan.down_tiles = 2;
    call.plan.narrow_ends = narrow_ends;
  }

  Call call;

 private:
  void tell(SourceProgress progress) { call.counters().progress[0] = progress.word(); }

  std::unique_ptr<char[]> memory_;
  TaskCursor cursor_;
  std::uint32_t ticket_ = 0;
};

Task up(std::uint32_t index, std::uint32_t tile) { return {.kind = TaskKind::up, .index = index, .tile = tile}; }
Task down(std::uint32_t index, std::uint32_t tile = 0) { return {.kind = TaskKind::down, .index = index, .tile = tile}; }
const Task kExit{.kind = TaskKind::exit};

void expect_tasks(const std::vector<Task>& tasks, const std::vector<Task>& wanted) {
  ASSERT_EQ(tasks.size(), wanted.size());
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    EXPECT_EQ(tasks[i].kind, wanted[i].kind) << i;
    EXPECT_EQ(tasks[i].index, wanted[i].index) << i;
    EXPECT_EQ(tasks[i].tile, wanted[i].tile) << i;
  }
}

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

/// Experts of the m-blocks that a scheduler of eight threads cuts, in their order, how many up tasks it publishes, and the m-blocks
/// of its down tasks, in their order.
struct CutByLanes {
  std::vector<std::uint32_t> experts;
  int up_tasks = 0;
  std::vector<std::uint32_t> downs;
};
CutByLanes cut_by_lanes(Landed& rank, std::size_t num_blocks) {
  using Eight = test::Lanes<8>;
  Eight lanes;
  lanes.run([&](const Eight::Group& group) {
    Scheduler<Eight::Group> scheduler(rank.call);
    for (int step = 0; step < 100 && scheduler.step(group) != Step::finished; ++step) {
    }
  });
  CutByLanes cut;
  for (std::size_t index = 0; index < num_blocks; ++index) {
    cut.experts.push_back(rank.call.m_block(static_cast<std::uint32_t>(index)).local_expert);
  }
  for (const Task& task : rank.published()) {
    cut.up_tasks += task.kind == TaskKind::up ? 1 : 0;
    if (task.kind == TaskKind::down) cut.downs.push_back(task.index);
  }
  return cut;
}

TEST(Scheduler, threads_of_a_group_have_the_next_experts_with_rows) {
  for (const WireForm form : {WireForm::counted, WireForm::lined}) {
    std::vector<std::uint32_t> rows(90, 0);
    std::vector<std::uint32_t> wanted;
    for (std::size_t expert = 0; expert < rows.size(); ++expert) {
      rows[expert] = expert < 12 ? 5 : expert % 7 == 0 ? 1 : expert == 89 ? 9 : 0;
      wanted.insert(wanted.end(), (rows[expert] + 3) / 4, static_cast<std::uint32_t>(expert));
    }
    Landed rank(rows, 100);
    rank.call.plan.wire_form = form;
    rank.call.roster.num_processors = 50;  // so many that nothing is enough
    const CutByLanes cut = cut_by_lanes(rank, wanted.size());
    EXPECT_EQ(cut.experts, wanted);
    std::vector<std::uint32_t> all(wanted.size());
    std::iota(all.begin(), all.end(), 0u);
    EXPECT_THAT(cut.downs, testing::UnorderedElementsAreArray(all));  // each m-block's one, over several looks of eight
  }
}

TEST(Scheduler, an_up_task_for_every_processor_is_cut_at_once) {
  // Experts have ten m-blocks of one up task each; those go together that begin before the limit, 32 at least.
  for (const auto& [processors, wanted] : {std::pair(80, 80u), {50, 50u}, {20, 40u}}) {
    Landed rank(std::vector<std::uint32_t>(8, 40), 100);
    rank.call.plan.up_tiles = 2;
    rank.call.heap.geometry.tile.narrow_rows = 0;
    rank.call.roster.num_processors = processors;
    std::uint32_t first = 0;  // tickets of the first cut
    using Eight = test::Lanes<8>;
    Eight lanes;
    lanes.run([&](const Eight::Group& group) {
      Scheduler<Eight::Group> scheduler(rank.call);
      for (int step = 0; step < 100 && scheduler.step(group) != Step::finished; ++step) {
        if (group.leader() && first == 0) first = rank.call.task_ring().latest().ticket;
      }
    });
    EXPECT_EQ(first, wanted) << processors << " processors";
  }
}

TEST(Scheduler, a_group_knows_of_up_tasks_that_later_rounds_will_cut) {
  for (const int processors : {20, 19}) {
    Landed rank(std::vector<std::uint32_t>(20, 2), 30);  // three rounds of eight threads, within one look
    rank.call.plan.wire_form = WireForm::lined;
    rank.call.plan.up_tiles = 2;
    rank.call.roster.num_processors = processors;
    EXPECT_EQ(cut_by_lanes(rank, 20).up_tasks, processors == 20 ? 40 : 20);
  }
}

TEST(Scheduler, experts_without_rows_are_passed_over) {
  for (const WireForm form : {WireForm::counted, WireForm::lined}) {
    std::vector<std::uint32_t> rows(70, 0);
    rows[3] = 5;
    rows[4] = 1;
    rows[69] = 9;
    Landed rank(rows, 30);
    rank.call.plan.wire_form = form;
    Scheduler<SoloGroup> scheduler(rank.call);
    rank.tasks(scheduler);
    std::vector<std::uint32_t> experts;
    for (std::uint32_t index = 0; index < 6; ++index) experts.push_back(rank.call.m_block(index).local_expert);
    EXPECT_EQ(experts, (std::vector<std::uint32_t>{3, 3, 4, 69, 69, 69}));
  }
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

TEST(Scheduler, a_group_goes_on_at_the_first_place_behind_the_last) {
  Landed rank({32, 0}, 9);  // eight m-blocks, then two in the places 8 and 0
  rank.keep_open(1);
  Scheduler<SoloGroup> scheduler(rank.call);
  rank.tasks(scheduler);
  rank.call.m_block(0).free = 1;
  rank.call.landed(0)[1] = 8;
  rank.keep_open(2);
  rank.tasks(scheduler);
  for (const std::uint32_t offset : {0u, 1u}) {
    const MBlock& block = rank.call.m_block(offset == 0 ? 8 : 0);
    EXPECT_EQ(block.local_expert, 1u);
    EXPECT_EQ(block.group_offset, offset);
    EXPECT_EQ(block.group_size, 2u);
    EXPECT_EQ(block.num_rows, 4u);
    EXPECT_EQ(block.num_segments, 1u);
    EXPECT_EQ(block.segments[0].first_entry, 32 + 4 * offset);
  }
  EXPECT_EQ(rank.call.taken(0)[1], 8u);
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

/// A scheduler's group where others may cut.
struct HelpedGroup : SoloGroup {
  struct Help {
    CutState state = CutState::awaited;
    bool begun = false;
    std::uint32_t count = 0;
    int refusals = 0;
  };
  Help* help = nullptr;

  CutState cut_state() const { return help->state; }
  bool refuse_cut() const {
    ++help->refusals;
    return !help->begun;
  }
  std::uint32_t num_cut() const { return help->count; }
};

/// What others would cut of expert 0's `rows` rows, one m-block.
void cut_for_scheduler(Landed& rank, std::uint32_t rows) {
  rank.call.m_block(0) = {.local_expert = 0, .num_rows = rows, .num_segments = 1, .free = 0, .cut_early = 1};
  rank.call.m_block(0).segments[0] = {0, 0, rows, rows};
  rank.call.taken(0)[0] = rows;
  rank.call.task_ring().publish(SoloGroup{}, {.kind = TaskKind::up, .index = 0, .size = 1});
  rank.call.task_ring().publish(SoloGroup{}, {.kind = TaskKind::down, .index = 0, .size = 1});
}

TEST(Scheduler, cuts_nothing_while_others_may) {
  Landed rank({4, 4}, 8);
  HelpedGroup::Help help;
  Scheduler<HelpedGroup> scheduler(rank.call);
  EXPECT_TRUE(rank.tasks(scheduler, 1000, {{}, &help}).empty());
  EXPECT_EQ(scheduler.wait().signal, SignalKind::landed);
  EXPECT_EQ(help.refusals, 0);
}

TEST(Scheduler, goes_on_behind_the_m_blocks_that_others_have_cut) {
  Landed rank({4}, 8);
  rank.keep_open();  // their rows need not have landed
  HelpedGroup::Help help;
  Scheduler<HelpedGroup> scheduler(rank.call);
  ASSERT_TRUE(rank.tasks(scheduler, 1000, {{}, &help}).empty());
  cut_for_scheduler(rank, 4);
  help = {.state = CutState::made, .count = 1};
  expect_tasks(rank.tasks(scheduler, 1000, {{}, &help}), {up(0, 0), up(0, 1), down(0), kExit});
}

TEST(Scheduler, of_no_m_blocks_others_leave_exits_alone) {
  Landed rank({0}, 8);
  HelpedGroup::Help help{.state = CutState::made};
  Scheduler<HelpedGroup> scheduler(rank.call);
  expect_tasks(rank.tasks(scheduler, 1000, {{}, &help}), {kExit});
}

TEST(Scheduler, cuts_itself_what_others_leave) {
  Landed rank({4, 3}, 8);
  HelpedGroup::Help help{.state = CutState::left};
  Scheduler<HelpedGroup> scheduler(rank.call);
  expect_tasks(rank.tasks(scheduler, 1000, {{}, &help}), {up(0, 0), up(0, 1), up(1, 0), up(1, 1), down(0), down(1), kExit});
}

/// It has seen that all waves are closed, and they leave: its next pass is the only one that there will be.
TEST(Scheduler, cuts_itself_what_others_leave_late) {
  Landed rank({4, 3}, 8);
  HelpedGroup::Help help;
  Scheduler<HelpedGroup> scheduler(rank.call);
  ASSERT_TRUE(rank.tasks(scheduler, 10, {{}, &help}).empty());
  help.state = CutState::left;
  expect_tasks(rank.tasks(scheduler, 1000, {{}, &help}), {up(0, 0), up(0, 1), up(1, 0), up(1, 1), down(0), down(1), kExit});
}

TEST(Scheduler, refuses_others_who_wait_for_a_late_rank_and_cuts_what_has_landed) {
  Landed rank({2}, 8);
  rank.keep_open();
  rank.call.flush_after_idle_steps = 5;
  HelpedGroup::Help help;
  const HelpedGroup group{{}, &help};
  Scheduler<HelpedGroup> scheduler(rank.call);
  for (int i = 0; i < 4; ++i) ASSERT_EQ(scheduler.step(group), Step::idle);
  EXPECT_EQ(help.refusals, 0);
  expect_tasks(rank.tasks(scheduler, 1000, group), {up(0, 0), up(0, 1), down(0)});
  EXPECT_EQ(help.refusals, 1);
}

TEST(Scheduler, waits_for_others_who_have_begun) {
  Landed rank({4}, 8);
  rank.keep_open();
  rank.call.flush_after_idle_steps = 2;
  HelpedGroup::Help help{.begun = true};
  const HelpedGroup group{{}, &help};
  Scheduler<HelpedGroup> scheduler(rank.call);
  for (int i = 0; i < 10; ++i) ASSERT_EQ(scheduler.step(group), Step::idle);
  cut_for_scheduler(rank, 4);
  help.state = CutState::made;
  help.count = 1;
  expect_tasks(rank.tasks(scheduler, 1000, group), {up(0, 0), up(0, 1), down(0), kExit});
}

/// One of eight threads; the leader alone knows what others do, as on a GPU.
struct HelpedLane : test::Lanes<8>::Group {
  HelpedGroup::Help* help = nullptr;

  CutState cut_state() const { return broadcast(leader() ? help->state : CutState::awaited); }
  bool refuse_cut() const { return broadcast(leader() && !help->begun); }
  std::uint32_t num_cut() const { return broadcast(leader() ? help->count : 0u); }
};

TEST(Scheduler, threads_of_a_group_go_on_together_behind_what_others_have_cut_or_left) {
  for (const CutState state : {CutState::made, CutState::left, CutState::awaited}) {
    Landed rank({4}, 8);
    if (state != CutState::left) rank.keep_open();
    rank.call.flush_after_idle_steps = 3;
    rank.call.roster.num_processors = 5;  // that two tasks are not enough for
    if (state == CutState::made) cut_for_scheduler(rank, 4);
    HelpedGroup::Help help{.state = state, .count = 1};
    test::Lanes<8> lanes;
    lanes.run([&](const test::Lanes<8>::Group& group) {
      const HelpedLane lane{group, &help};
      Scheduler<HelpedLane> scheduler(rank.call);
      for (int step = 0; step < 40 && scheduler.step(lane) != Step::finished; ++step) {
      }
    });
    std::vector<Task> wanted{up(0, 0), up(0, 1), down(0)};
    if (state != CutState::awaited) wanted.insert(wanted.end(), 5, kExit);  // of the late rank rows may still come
    expect_tasks(rank.published(), wanted);
  }
}

}  // namespace
}  // namespace flashmoe
