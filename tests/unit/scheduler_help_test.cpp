// A scheduler where others may cut m-blocks for it: it waits for them, goes on behind them, or cuts what they leave.
#include "actors/scheduler.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "actors/call.hpp"
#include "actors/group.hpp"
#include "support/landed_rank.hpp"
#include "support/lanes.hpp"

namespace flashmoe {
namespace {

using test::down;
using test::expect_tasks;
using test::kExit;
using test::Landed;
using test::up;

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
