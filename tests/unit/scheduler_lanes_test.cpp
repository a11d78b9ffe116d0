// A scheduler of several threads: they cut the next experts with rows side by side.
#include "actors/scheduler.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "actors/call.hpp"
#include "support/landed_rank.hpp"
#include "support/lanes.hpp"

namespace flashmoe {
namespace {

using test::Landed;

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

}  // namespace
}  // namespace flashmoe
