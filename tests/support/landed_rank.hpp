// A rank whose rows have landed, for tests of the scheduler: which m-blocks it cuts of them, and what tasks it publishes.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "actors/call.hpp"
#include "actors/group.hpp"
#include "actors/scheduler.hpp"

namespace flashmoe::test {

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

inline Task up(std::uint32_t index, std::uint32_t tile) { return {.kind = TaskKind::up, .index = index, .tile = tile}; }
inline Task down(std::uint32_t index, std::uint32_t tile = 0) { return {.kind = TaskKind::down, .index = index, .tile = tile}; }
inline const Task kExit{.kind = TaskKind::exit};

inline void expect_tasks(const std::vector<Task>& tasks, const std::vector<Task>& wanted) {
  ASSERT_EQ(tasks.size(), wanted.size());
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    EXPECT_EQ(tasks[i].kind, wanted[i].kind) << i;
    EXPECT_EQ(tasks[i].index, wanted[i].index) << i;
    EXPECT_EQ(tasks[i].tile, wanted[i].tile) << i;
  }
}

}  // namespace flashmoe::test
