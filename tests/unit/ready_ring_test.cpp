// The queue of ready tasks, alone and between threads.
#include "actors/ready_ring.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "actors/group.hpp"

namespace flashmoe {
namespace {

struct Ring {
  explicit Ring(std::uint32_t capacity) : cells(capacity), view(&state, cells.data(), capacity) {}
  ReadyRingState state;
  std::vector<ReadyCell> cells;
  ReadyRing view;

  bool fill(std::uint64_t ticket, const Task& task) const {
    return view.try_fill<1>(1u, [&](int) { return ticket; }, [&](std::uint64_t) { return task; }) != 0;
  }
};

TEST(ReadyRing, hands_out_tasks_in_order_over_many_laps) {
  Ring ring(4);
  for (std::uint32_t i = 0; i < 100; ++i) {
    ASSERT_TRUE(ring.fill(ring.view.reserve(1), {.kind = TaskKind::up, .index = i}));
    Task task;
    ASSERT_TRUE(ring.view.try_take(ring.view.claim(), task));
    EXPECT_EQ(task.index, i);
    EXPECT_EQ(task.kind, TaskKind::up);
  }
}

TEST(ReadyRing, an_empty_cell_gives_nothing_and_a_full_one_takes_nothing) {
  Ring ring(2);
  Task task;
  const std::uint64_t first = ring.view.claim();
  EXPECT_FALSE(ring.view.try_take(first, task));
  ring.view.reserve(3);
  EXPECT_TRUE(ring.fill(0, {.index = 10}));
  EXPECT_TRUE(ring.fill(1, {.index = 11}));
  EXPECT_FALSE(ring.fill(2, {.index = 12}));  // its cell holds ticket 0's task
  EXPECT_TRUE(ring.view.try_take(first, task));
  EXPECT_EQ(task.index, 10u);
  EXPECT_FALSE(ring.view.try_take(first, task));  // each task once
  EXPECT_TRUE(ring.fill(2, {.index = 12}));
}

TEST(ReadyRing, tickets_may_be_filled_and_taken_out_of_order) {
  Ring ring(4);
  ring.view.reserve(2);
  EXPECT_TRUE(ring.fill(1, {.index = 1}));
  Task task;
  EXPECT_FALSE(ring.view.try_take(0, task));
  EXPECT_TRUE(ring.view.try_take(1, task));
  EXPECT_EQ(task.index, 1u);
}

TEST(Publication, goes_on_where_a_full_ring_stopped_it) {
  Ring ring(2);
  Publication publication;
  publication.begin(SoloGroup{}, ring.view, 5);
  const auto task_of = [](std::uint64_t number) {
    return Task{.kind = TaskKind::down, .index = 7, .tile = 100 + static_cast<std::uint32_t>(number)};
  };
  std::vector<std::uint32_t> tiles;
  bool done = false;
  for (int turn = 0; turn < 5; ++turn) {
    done = publication.advance(SoloGroup{}, ring.view, task_of);
    Task task;
    ASSERT_TRUE(ring.view.try_take(ring.view.claim(), task));
    EXPECT_EQ(task.index, 7u);
    tiles.push_back(task.tile);
    EXPECT_EQ(done, turn >= 3);  // the last task fits once the fourth-last has left
  }
  EXPECT_EQ(tiles, (std::vector<std::uint32_t>{100, 101, 102, 103, 104}));
}

TEST(ReadyRing, gives_each_task_to_one_of_many_threads_with_what_was_written_before_it) {
  constexpr std::uint32_t kPublishers = 3, kTakers = 3, kTasksEach = 3000, kBatch = 5;
  Ring ring(8);
  std::vector<int> payload(kPublishers * kTasksEach, 0);  // plain memory, ordered by the ring alone
  std::vector<std::atomic<int>> taken(payload.size());
  std::atomic<bool> wrong{false};
  {
    std::vector<std::jthread> threads;
    for (std::uint32_t publisher = 0; publisher < kPublishers; ++publisher) {
      threads.emplace_back([&, publisher] {
        for (std::uint32_t first = 0; first < kTasksEach; first += kBatch) {
          const std::uint32_t index = publisher * kTasksEach + first;
          for (std::uint32_t i = 0; i < kBatch; ++i) payload[index + i] = static_cast<int>(index + i) + 1;
          Publication publication;
          publication.begin(SoloGroup{}, ring.view, kBatch);
          const auto task_of = [index](std::uint64_t number) {
            return Task{.index = index, .tile = static_cast<std::uint32_t>(number)};
          };
          while (!publication.advance(SoloGroup{}, ring.view, task_of)) std::this_thread::yield();
        }
      });
    }
    for (std::uint32_t taker = 0; taker < kTakers; ++taker) {
      threads.emplace_back([&] {
        for (std::uint32_t i = 0; i < kPublishers * kTasksEach / kTakers; ++i) {
          const std::uint64_t ticket = ring.view.claim();
          Task task;
          while (!ring.view.try_take(ticket, task)) std::this_thread::yield();
          const std::uint32_t index = task.index + task.tile;
          if (payload[index] != static_cast<int>(index) + 1) wrong = true;
          ++taken[index];
        }
      });
    }
  }
  EXPECT_FALSE(wrong);
  for (const auto& count : taken) ASSERT_EQ(count, 1);
  EXPECT_EQ(ring.state.next_fill, ring.state.next_take);
}

}  // namespace
}  // namespace flashmoe
