// The queue of tasks, alone and between threads.
#include "actors/task_ring.hpp"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "actors/group.hpp"
#include "support/lanes.hpp"

namespace flashmoe {
namespace {

constexpr TaskShape kShape{.num_up_tiles = 3, .num_down_tiles = 5, .up_tiles = 1, .down_tiles = 2, .num_m_blocks = 7};

struct Ring {
  explicit Ring(std::uint32_t capacity, std::uint64_t start = 0, const TaskShape& shape = kShape)
      : cells(capacity), view(&state, cells.data(), capacity, shape) {
    state.published = state.begun = start;
    state.next_take = static_cast<std::uint32_t>(start);
  }
  TaskRingState state;
  std::vector<std::uint64_t> cells;
  TaskRing view;

  void publish(const TaskBatch& batch) const { view.publish(SoloGroup{}, batch); }

  struct Taker {
    const TaskRing& ring;
    TaskCursor cursor = ring.first();
    /// The next task, or one of kind exit when there is none yet.
    Task take() {
      Task task;
      const std::uint32_t ticket = ring.claim();
      for (int looks = 0; looks < 100; ++looks) {
        if (ring.find(ticket, cursor, task)) return task;
      }
      return {};
    }
  };
};

void expect_task(const Task& task, const Task& wanted) {
  EXPECT_EQ(task.kind, wanted.kind);
  EXPECT_EQ(task.num_tiles, wanted.num_tiles);
  EXPECT_EQ(task.half, wanted.half);
  EXPECT_EQ(task.wave_slot, wanted.wave_slot);
  EXPECT_EQ(task.index, wanted.index);
  EXPECT_EQ(task.tile, wanted.tile);
}

/// What a group of four threads finds in one look, all of which must agree.
struct LookOfFour {
  bool found = false;
  TaskCursor cursor;
  Task task;
};
LookOfFour look_of_four(const TaskRing& ring, std::uint32_t ticket, const TaskCursor& cursor) {
  using Four = test::Lanes<4>;
  std::array<LookOfFour, 4> looks;
  Four lanes;
  lanes.run([&](const Four::Group& group) {
    LookOfFour& look = looks[static_cast<std::size_t>(group.index())];
    look.cursor = cursor;
    look.found = ring.find(group, ticket, look.cursor, look.task);
  });
  for (const LookOfFour& look : looks) {
    EXPECT_EQ(look.found, looks[0].found);
    EXPECT_EQ(look.cursor.batch, looks[0].cursor.batch);
    EXPECT_EQ(look.cursor.ticket, looks[0].cursor.ticket);
    if (look.found) expect_task(look.task, looks[0].task);
  }
  return looks[0];
}

TEST(TaskRing, a_group_finds_what_one_thread_finds) {
  constexpr std::uint32_t kLaps = 9;
  Ring ring(8, 0xfffffff0);  // tickets wrap
  TaskCursor one = ring.view.first();
  TaskCursor all = one;
  std::uint32_t ticket = 0xfffffff0;
  for (std::uint32_t lap = 0; lap < kLaps; ++lap) {  // cells of the lap before are left over
    std::uint32_t tickets = 0;
    for (std::uint32_t batch = 0; batch < 7; ++batch) {
      const std::uint32_t size = (lap + batch) % 3 + 1;
      ring.publish({.kind = TaskKind::reduce, .index = batch, .size = size});
      tickets += size;
    }
    for (; tickets > 0; --tickets, ++ticket) {
      Task wanted;
      LookOfFour look;
      look.cursor = all;
      for (int looks = 0; looks < 9 && !ring.view.find(ticket, one, wanted); ++looks) {
      }
      for (int looks = 0; looks < 9 && !look.found; ++looks) look = look_of_four(ring.view, ticket, look.cursor);
      ASSERT_TRUE(look.found) << ticket;
      expect_task(look.task, wanted);
      if (tickets % 4 == 0) all = look.cursor;  // else the next look has further to go
    }
    EXPECT_FALSE(look_of_four(ring.view, ticket, all).found);
  }
}

TEST(TaskRing, a_group_does_not_pass_a_batch_that_is_not_there_yet) {
  Ring ring(16);
  for (std::uint32_t batch = 0; batch < 6; ++batch) ring.publish({.kind = TaskKind::reduce, .index = batch, .size = 2});
  const std::uint64_t second = ring.cells[1];
  ring.cells[1] = 0;  // its successors have come before it
  const LookOfFour far = look_of_four(ring.view, 11, ring.view.first());
  EXPECT_FALSE(far.found);
  EXPECT_EQ(far.cursor.batch, 1u);
  EXPECT_EQ(far.cursor.ticket, 0u);
  EXPECT_TRUE(look_of_four(ring.view, 6, ring.view.first()).found) << "the fourth batch, which is there";
  ring.cells[1] = second;
  LookOfFour look = far;
  for (int looks = 0; looks < 3 && !look.found; ++looks) look = look_of_four(ring.view, 11, look.cursor);
  EXPECT_TRUE(look.found);
  EXPECT_EQ(look.task.wave_slot, 5);
}

TEST(TaskRing, tasks_of_a_batch_alternate_between_its_m_blocks_and_go_round_the_ring_of_places) {
  Ring ring(8);
  Ring::Taker taker{ring.view};
  ring.publish({.kind = TaskKind::down, .index = 6, .size = 2});
  for (const auto& [index, tile, tiles] : std::vector<std::tuple<unsigned, unsigned, int>>{
           {6, 0, 2}, {0, 0, 2}, {6, 2, 2}, {0, 2, 2}, {6, 4, 1}, {0, 4, 1}}) {
    expect_task(taker.take(), {.kind = TaskKind::down, .num_tiles = static_cast<std::uint8_t>(tiles), .index = index, .tile = tile});
  }
}

TEST(TaskRing, tasks_of_a_narrow_batch_have_one_tile) {
  Ring ring(8);
  Ring::Taker taker{ring.view};
  ring.publish({.kind = TaskKind::down, .index = 6, .size = (1 << 16) - 1, .narrow = true});
  ring.publish({.kind = TaskKind::exit, .size = (1 << 16) - 1});
  expect_task(taker.take(), {.kind = TaskKind::down, .index = 6, .tile = 0});
  expect_task(taker.take(), {.kind = TaskKind::down, .index = 0, .tile = 0});
  ring.state.next_take += 5 * ((1 << 16) - 1) - 2;
  expect_task(taker.take(), {.kind = TaskKind::exit});
}

TEST(TaskRing, down_tasks_of_a_halved_batch_have_half_as_many_tiles) {
  TaskShape shape = kShape;
  shape.down_tiles = 4;
  shape.halved_down_tiles = 2;
  const Ring ring(4, 0, shape);
  ring.publish({.kind = TaskKind::down, .index = 3, .size = 1});
  ring.publish({.kind = TaskKind::down, .index = 5, .size = 1, .halved = true});
  Ring::Taker taker{ring.view};
  const auto down = [](std::uint32_t index, std::uint32_t tile, std::uint8_t tiles) {
    return Task{.kind = TaskKind::down, .num_tiles = tiles, .index = index, .tile = tile};
  };
  for (const Task& wanted : {down(3, 0, 4), down(3, 4, 1), down(5, 0, 2), down(5, 2, 2), down(5, 4, 1)}) {
    expect_task(taker.take(), wanted);
  }
}

TEST(TaskRing, tasks_of_a_halved_batch_have_half_a_tile) {
  Ring ring(8);
  Ring::Taker taker{ring.view};
  ring.publish({.kind = TaskKind::up, .index = 6, .size = 2, .narrow = true, .halved = true});
  ring.publish({.kind = TaskKind::down, .index = 6, .size = 1, .narrow = true});
  for (const std::uint32_t tile : {0u, 1u, 2u}) {
    for (const std::uint8_t half : {1, 2}) {
      for (const std::uint32_t index : {6u, 0u}) {
        expect_task(taker.take(), {.kind = TaskKind::up, .half = half, .index = index, .tile = tile});
      }
    }
  }
  expect_task(taker.take(), {.kind = TaskKind::down, .index = 6, .tile = 0});
}

/// The tasks of all claims of two, as "m-block.tile", "=" between those of one tile, or "-" for none, until an exit.
std::string taken_in_pairs(const Ring& ring) {
  TaskCursor cursor = ring.view.first();
  std::string all;
  while (true) {
    const std::uint32_t ticket = ring.view.claim(2);
    Task task;
    if (!ring.view.find(ticket, cursor, task)) return all + " missing";
    if (task.kind == TaskKind::exit) return all;
    const Task next = ring.view.behind(ticket, cursor);
    const auto name = [](const Task& t) { return std::to_string(t.index) + "." + std::to_string(t.tile); };
    all += " " + name(task) + (same_tiles(task, next) ? "=" : "+") + (next.num_tiles == 0 ? "-" : name(next));
  }
}

TEST(TaskRing, tickets_taken_in_pairs_are_of_one_tile_but_for_the_last_m_block_of_an_odd_number) {
  TaskShape shape = kShape;
  shape.tickets_at_once = 2;
  const auto order = [&](const TaskBatch& batch) {
    Ring ring(8, 0, shape);
    ring.publish(batch);
    ring.publish({.kind = TaskKind::exit, .size = 2});
    return taken_in_pairs(ring);
  };
  EXPECT_EQ(order({.kind = TaskKind::up, .index = 1, .size = 2}), " 1.0=2.0 1.1=2.1 1.2=2.2");
  EXPECT_EQ(order({.kind = TaskKind::up, .index = 5, .size = 3}), " 5.0=6.0 5.1=6.1 0.0+0.1 5.2=6.2 0.2+-");
  EXPECT_EQ(order({.kind = TaskKind::up, .index = 4, .size = 1}), " 4.0+4.1 4.2+-");
  EXPECT_EQ(order({.kind = TaskKind::down, .index = 2, .size = 1}), " 2.0+2.2 2.4+-");
  EXPECT_EQ(order({.kind = TaskKind::down, .index = 0, .size = 4, .narrow = true}),
            " 0.0=1.0 2.0=3.0 0.1=1.1 2.1=3.1 0.2=1.2 2.2=3.2 0.3=1.3 2.3=3.3 0.4=1.4 2.4=3.4");
  EXPECT_EQ(order({.kind = TaskKind::down, .index = 0, .size = 5}),
            " 0.0=1.0 2.0=3.0 0.2=1.2 2.2=3.2 4.0+4.2 0.4=1.4 2.4=3.4 4.4+-");
  EXPECT_EQ(order({.kind = TaskKind::reduce, .index = 3, .size = 3}), " 0.0+0.1 0.2+-");
  shape.num_up_tiles = 1;
  EXPECT_EQ(order({.kind = TaskKind::up, .index = 4, .size = 1}), " 4.0+-");
}

TEST(TaskRing, tickets_taken_in_pairs_bring_every_task_once) {
  for (int tiles = 1; tiles <= 9; ++tiles) {
    for (std::uint32_t size = 1; size <= 9; ++size) {
      Ring ring(4, 7, {.num_up_tiles = tiles, .num_m_blocks = 16, .tickets_at_once = 2});
      ring.publish({.kind = TaskKind::up, .index = 12, .size = size});
      TaskCursor cursor = ring.view.first();
      std::map<std::pair<std::uint32_t, std::uint32_t>, int> taken;
      while (ring.state.next_take != static_cast<std::uint32_t>(ring.state.published)) {
        const std::uint32_t ticket = ring.view.claim(2);
        ASSERT_LE(ticket + 2, static_cast<std::uint32_t>(ring.state.published));
        Task task;
        ASSERT_TRUE(ring.view.find(ticket, cursor, task));
        for (const Task& one : {task, ring.view.behind(ticket, cursor)}) {
          if (one.num_tiles > 0) ++taken[{(one.index + 16 - 12) % 16, one.tile}];
        }
      }
      EXPECT_EQ(taken.size(), size * static_cast<std::uint32_t>(tiles)) << size << " m-blocks, tiles " << tiles;
      for (const auto& [what, count] : taken) {
        EXPECT_EQ(count, 1);
        EXPECT_LT(what.first, size);
        EXPECT_LT(what.second, static_cast<std::uint32_t>(tiles));
      }
    }
  }
}

TEST(TaskRing, batches_of_all_kinds_follow_each_other_over_many_laps_and_past_the_end_of_the_numbers) {
  Ring ring(8, std::uint64_t{0xfffffff0u} << 32 | 0xffffff80u);
  Ring::Taker taker{ring.view};
  for (std::uint32_t lap = 0; lap < 50; ++lap) {
    ring.publish({.kind = TaskKind::up, .index = lap % 7, .size = 1});
    ring.publish({.kind = TaskKind::reduce, .index = lap, .size = 2});
    for (std::uint32_t tile = 0; tile < 3; ++tile) {
      expect_task(taker.take(), {.kind = TaskKind::up, .index = lap % 7, .tile = tile});
    }
    for (std::uint32_t tile = 0; tile < 2; ++tile) {
      expect_task(taker.take(), {.kind = TaskKind::reduce, .wave_slot = static_cast<std::uint16_t>(lap), .tile = tile});
    }
  }
  ring.publish({.kind = TaskKind::exit, .size = 1});
  expect_task(taker.take(), {.kind = TaskKind::exit});
}

TEST(TaskRing, batches_are_found_wherever_their_publisher_has_placed_them) {
  const Ring ring(8, std::uint64_t{5} << 32 | 40);
  const TaskBatch up{.kind = TaskKind::up, .index = 2, .size = 1};
  const TaskBatch down{.kind = TaskKind::down, .index = 2, .size = 1};
  const TaskCursor first = ring.view.first();
  const std::uint32_t ups = kShape.num_tickets(up);
  const TaskCursor second{first.batch + 1, first.ticket + ups};
  const TaskCursor end{second.batch + 1, second.ticket + kShape.num_tickets(down)};
  ring.view.place(second, down);
  Task task;
  TaskCursor cursor = first;
  EXPECT_FALSE(ring.view.find(second.ticket, cursor, task)) << "the batch before it is not there";
  ring.view.place(first, up);
  ring.view.end_at(end);
  ASSERT_TRUE(ring.view.find(second.ticket, cursor, task));
  expect_task(task, {.kind = TaskKind::down, .num_tiles = 2, .index = 2, .tile = 0});
  ring.publish({.kind = TaskKind::exit, .size = 1});
  ASSERT_TRUE(ring.view.find(end.ticket, cursor, task));
  EXPECT_EQ(task.kind, TaskKind::exit);
}

TEST(TaskRing, given_tickets_are_claimed_by_nobody) {
  Ring ring(8, 40);
  const TaskRing given(&ring.state, ring.cells.data(), 8, kShape, 3);
  given.publish(SoloGroup{}, {.kind = TaskKind::up, .index = 0, .size = 2});  // six tickets
  EXPECT_EQ(given.unclaimed(), 3);
  EXPECT_EQ(given.claim(), 43u);
  EXPECT_EQ(given.claim(), 44u);
  EXPECT_EQ(given.unclaimed(), 1);
}

TEST(TaskRing, a_task_is_found_once_it_is_published_and_not_before) {
  Ring ring(8);
  for (std::uint32_t lap = 0; lap < 20; ++lap) {
    TaskCursor cursor = ring.view.first();
    const std::uint32_t ticket = ring.view.claim();
    Task task;
    for (int looks = 0; looks < 5; ++looks) EXPECT_FALSE(ring.view.find(ticket, cursor, task));
    ring.publish({.kind = TaskKind::reduce, .index = lap, .size = 1});
    ASSERT_TRUE(ring.view.find(ticket, cursor, task));
    EXPECT_EQ(task.wave_slot, lap);
    ring.state.begun = ring.state.published;
  }
}

TEST(TaskRing, one_who_slept_through_laps_still_finds_its_task) {
  Ring ring(8);
  TaskCursor late = ring.view.first();
  Ring::Taker taker{ring.view};
  for (std::uint32_t i = 0; i < 43; ++i) {
    ring.publish({.kind = TaskKind::reduce, .index = i, .size = 1});
    EXPECT_EQ(taker.take().wave_slot, i);
  }
  const std::uint32_t ticket = ring.view.claim();
  for (std::uint32_t i = 43; i < 46; ++i) ring.publish({.kind = TaskKind::reduce, .index = i, .size = 1});
  Task task;
  bool found = false;
  for (int looks = 0; looks < 3 && !found; ++looks) found = ring.view.find(ticket, late, task);
  ASSERT_TRUE(found);
  EXPECT_EQ(task.wave_slot, 43);
}

TEST(TaskRing, gives_each_task_to_one_of_many_threads_with_what_was_written_before_it) {
  constexpr std::uint32_t kPublishers = 3, kTakers = 3, kBatchesEach = 1000, kBatch = 5;
  Ring ring(4096);  // all of them: takers may sleep
  std::vector<int> payload(kPublishers * kBatchesEach * kBatch, 0);  // plain memory, ordered by the ring alone
  std::vector<std::atomic<int>> taken(payload.size());
  std::atomic<bool> wrong{false};
  {
    std::vector<std::jthread> threads;
    for (std::uint32_t publisher = 0; publisher < kPublishers; ++publisher) {
      threads.emplace_back([&, publisher] {
        for (std::uint32_t i = 0; i < kBatchesEach; ++i) {
          const std::uint32_t batch = publisher * kBatchesEach + i;
          for (std::uint32_t j = 0; j < kBatch; ++j) payload[batch * kBatch + j] = static_cast<int>(batch) + 1;
          ring.publish({.kind = TaskKind::reduce, .index = batch, .size = kBatch});
        }
      });
    }
    for (std::uint32_t taker = 0; taker < kTakers; ++taker) {
      threads.emplace_back([&] {
        TaskCursor cursor = ring.view.first();
        for (std::uint32_t i = 0; i < kPublishers * kBatchesEach * kBatch / kTakers; ++i) {
          const std::uint32_t ticket = ring.view.claim();
          Task task;
          while (!ring.view.find(ticket, cursor, task)) std::this_thread::yield();
          const std::uint32_t index = task.wave_slot * kBatch + task.tile;
          if (payload[index] != task.wave_slot + 1) wrong = true;
          ++taken[index];
        }
      });
    }
  }
  EXPECT_FALSE(wrong);
  for (const auto& count : taken) ASSERT_EQ(count, 1);
  EXPECT_EQ(static_cast<std::uint32_t>(ring.state.published), ring.state.next_take);
}

}  // namespace
}  // namespace flashmoe
