// The queue of tasks: scheduler and completions publish batches, processors take the tasks of all batches in order,
// each task once. A batch is one word, so a few hundred tasks cost what one costs, and nobody gives anything back.
#pragma once

#include <cstdint>

#include "actors/group.hpp"
#include "actors/signal.hpp"
#include "actors/task.hpp"
#include "core/divide.hpp"
#include "flashmoe/problem.hpp"

namespace flashmoe {

/// Tasks that stand next to each other in the queue.
struct TaskBatch {
  TaskKind kind = TaskKind::exit;
  std::uint32_t index = 0;  ///< up, down: first m-block of the ring; reduce: source * wave_ring + ring slot
  std::uint32_t size = 0;   ///< up, down: m-blocks of one expert whose tasks alternate; reduce, exit: tasks
  bool narrow = false;      ///< up, down: tasks of one tile
  bool halved = false;      ///< up, narrow: tasks of half a tile; down: of TaskShape::halved_down_tiles
};

/// How the tiles of an m-block make tasks.
struct TaskShape {
  int num_up_tiles = 1, num_down_tiles = 1;
  int up_tiles = 1, down_tiles = 1, halved_down_tiles = 0;  ///< of a task, see CallPlan
  int num_m_blocks = 1;              ///< of the intermediate ring
  int tickets_at_once = 1;           ///< of a claim: 2 where two processors take tasks together

  FLASHMOE_HD int num_tiles(TaskKind kind) const { return kind == TaskKind::up ? num_up_tiles : num_down_tiles; }
  FLASHMOE_HD int tiles_of_task(const TaskBatch& batch) const {
    if (batch.narrow) return 1;
    return batch.kind == TaskKind::up ? up_tiles : batch.halved ? halved_down_tiles : down_tiles;
  }
  /// Tickets of a batch: no claim reaches from one batch into the next, so the last ticket may have no task.
  FLASHMOE_HD std::uint32_t num_tickets(const TaskBatch& batch) const {
    const std::uint32_t tasks = num_tasks(batch);
    return tickets_at_once == 2 ? tasks + tasks % 2 : tasks;
  }

  /// Task `number` of a batch, of no tiles behind the last. Those of several m-blocks alternate: processors that run neighbours
  /// at the same time read the same weights (H100, 16 m-blocks of one expert: 650 TFLOP/s this way, 421 block by block).
  FLASHMOE_HD Task task(const TaskBatch& batch, std::uint32_t number) const {
    if (batch.kind == TaskKind::exit) return {.kind = batch.kind};
    if (tickets_at_once == 2 && number >= num_tasks(batch)) return {.kind = batch.kind, .num_tiles = 0};
    if (batch.kind == TaskKind::reduce) {
      return {.kind = batch.kind, .wave_slot = static_cast<std::uint16_t>(batch.index), .tile = number};
    }
    const Place place = place_of(batch, number);
    const bool half = has_half_tiles(batch);
    const int tile = static_cast<int>(half ? place.product / 2 : place.product) * tiles_of_task(batch);
    const int rest = num_tiles(batch.kind) - tile;
    const int tiles = rest < tiles_of_task(batch) ? rest : tiles_of_task(batch);
    std::uint32_t index = batch.index + place.block;
    if (index >= static_cast<std::uint32_t>(num_m_blocks)) index -= static_cast<std::uint32_t>(num_m_blocks);
    return {.kind = batch.kind,
            .num_tiles = static_cast<std::uint8_t>(tiles),
            .half = static_cast<std::uint8_t>(half ? 1 + place.product % 2 : 0),
            .index = index,
            .tile = static_cast<std::uint32_t>(tile)};
  }

 private:
  FLASHMOE_HD static bool has_half_tiles(const TaskBatch& batch) { return batch.kind == TaskKind::up && batch.halved; }
  FLASHMOE_HD std::uint32_t products(const TaskBatch& batch) const {
    const auto products = static_cast<std::uint32_t>(ceil_divide_small(num_tiles(batch.kind), tiles_of_task(batch)));
    return has_half_tiles(batch) ? 2 * products : products;
  }
  FLASHMOE_HD std::uint32_t num_tasks(const TaskBatch& batch) const {
    return batch.kind == TaskKind::up || batch.kind == TaskKind::down ? batch.size * products(batch) : batch.size;
  }

  struct Place {
    std::uint32_t block, product;
  };
  /// Taken two at once, the m-blocks of an odd number go in twos, and the products of the last one do.
  FLASHMOE_HD Place place_of(const TaskBatch& batch, std::uint32_t number) const {
    const std::uint32_t size = batch.size;
    const auto product = static_cast<std::uint32_t>(divide_small(static_cast<int>(number), static_cast<int>(size)));
    const Place place{number - product * size, product};
    if (tickets_at_once == 1 || size % 2 == 0) return place;
    const std::uint32_t first = place.product / 2 * 2;  // of two products
    if (first + 1 == products(batch)) return place;
    const std::uint32_t within = number - first * size;
    const std::uint32_t paired = 2 * (size - 1);
    return within < paired ? Place{within % (size - 1), first + within / (size - 1)} : Place{size - 1, first + within - paired};
  }
};

/// Tickets and batches are counted from the ring's first use on, modulo 2^32: nothing is reset between epochs.
struct TaskRingState {
  std::uint64_t published = 0;  ///< batches in the upper half, tickets of their tasks in the lower
  std::uint64_t begun = 0;      ///< what `published` was when the epoch began
  std::uint32_t next_take = 0;  ///< tickets claimed, and those given in epochs before
};

/// Where a taker looks next: a batch that it knows is published, or the epoch's first, and the ticket it begins with.
struct TaskCursor {
  std::uint32_t batch = 0;
  std::uint32_t ticket = 0;
};

/// Trivially copyable view. `capacity` is a power of two; the cell of batch b is b % capacity, and a batch is
/// overwritten only once all its tasks have been found: see task_ring_capacity(). `given`: of an epoch's tickets the first, so
/// many, belong to takers without a claim.
class TaskRing {
 public:
  FLASHMOE_HD TaskRing(TaskRingState* state, std::uint64_t* cells, std::uint32_t capacity, const TaskShape& shape,
                       std::uint32_t given = 0)
      : state_(state), cells_(cells), capacity_(capacity), shape_(shape), given_(given) {}

  /// Every thread of the group publishes its batch, in the order of the threads; size 0: none. Requires: the group has
  /// synced since its threads wrote what the tasks refer to. `sole`: of the ring's only publisher this epoch, what it has
  /// published, at first first(); null: others publish, too.
  /// Memory ordering: release.
  template <class Group>
  FLASHMOE_HD void publish(const Group& group, const TaskBatch& mine, TaskCursor* sole = nullptr) const {
    with_place(group, mine, sole, [](std::uint64_t& cell, std::uint64_t word) { flashmoe::publish(&cell, word); });
  }

  /// The same after fence_release() of every thread since what the tasks refer to was written: one for many calls.
  template <class Group>
  FLASHMOE_HD void publish_fenced(const Group& group, const TaskBatch& mine, TaskCursor* sole = nullptr) const {
    with_place(group, mine, sole, [](std::uint64_t& cell, std::uint64_t word) { flashmoe::publish_fenced(&cell, word); });
  }

  /// Publishes one batch of the group's. Collective.
  template <class Group>
  FLASHMOE_HD void publish_one(const Group& group, const TaskBatch& batch, TaskCursor* sole = nullptr) const {
    if (group.leader()) publish(SoloGroup{}, batch, sole);
    group.sync();
  }

  /// Publishes a batch of this thread's where it will be, for who alone publishes now and knows that of every batch. Requires:
  /// fence_release() of this thread since what its tasks refer to was written.
  FLASHMOE_HD void place(const TaskCursor& at, const TaskBatch& mine) const {
    flashmoe::publish_fenced(&cell_of(at.batch), encode(at.ticket, mine));
  }
  /// All batches before this one have been placed. One thread, before anybody else publishes.
  FLASHMOE_HD void end_at(const TaskCursor& end) const { set(&state_->published, word_of(end)); }

  /// `count` tickets to take, the first of them. The caller must try to find their tasks until it succeeds.
  FLASHMOE_HD std::uint32_t claim(std::uint32_t count = 1) const { return draw(&state_->next_take, count) + given_; }

  /// Tickets published and not claimed; below 0: claims that wait for tasks. A hint, see peek().
  FLASHMOE_HD int unclaimed() const {
    return static_cast<int>(cursor_of(peek(&state_->published)).ticket - peek(&state_->next_take) - given_);
  }

  /// Behind all that is published, for a caller that knows that nobody publishes now.
  FLASHMOE_HD TaskCursor latest() const { return cursor_of(peek(&state_->published)); }

  /// Where the epoch's first task will be.
  FLASHMOE_HD TaskCursor first() const { return cursor_of(state_->begun); }

  /// Looks for the task of a claimed ticket: true once it is published. One bounded look from the cursor on; moves it. Not for
  /// a ticket without a task, whose batch may be overwritten: see behind().
  /// Memory ordering: acquire.
  FLASHMOE_HD bool find(std::uint32_t ticket, TaskCursor& cursor, Task& task) const {
    constexpr int kAtOnce = 8;  // loads in flight
    std::uint64_t words[kAtOnce];
    FLASHMOE_UNROLL
    for (int i = 0; i < kAtOnce; ++i) words[i] = peek(&cell_of(cursor.batch + static_cast<std::uint32_t>(i)));
    const std::uint32_t begin = cursor.batch;
    for (int i = 0; i < kAtOnce; ++i) {
      const TaskBatch batch = decode(words[i]);
      const auto first = static_cast<std::uint32_t>(words[i]);
      // Left over from a lap before: not published yet. A batch far ahead, that of a later lap: the one in question
      // comes after it, as cells go round.
      if (batch.size == 0 || is_before(first, cursor.ticket)) return false;
      if (ticket - first < shape_.num_tickets(batch)) {
        cursor = {begin + static_cast<std::uint32_t>(i), first};
        observe<Scope::device>(&cell_of(cursor.batch));
        task = shape_.task(batch, ticket - first);
        return true;
      }
      ++cursor.batch;
      if (is_before(first, ticket)) cursor.ticket = first;
    }
    return false;
  }

  /// find() by a group, all of whose threads have the same cursor: each looks at one cell. Collective; the group has to sync
  /// before all its threads may read what the task refers to.
  template <class Group>
  FLASHMOE_HD bool find(const Group& group, std::uint32_t ticket, TaskCursor& cursor, Task& task) const {
    const std::uint64_t& cell = cell_of(cursor.batch + static_cast<std::uint32_t>(group.index()));
    const std::uint64_t word = peek(&cell);  // whoever acquires in vain empties a cache for nothing
    const TaskBatch batch = decode(word);
    const auto first = static_cast<std::uint32_t>(word);
    const bool published = batch.size > 0 && !is_before(first, cursor.ticket);
    const bool mine = published && ticket - first < shape_.num_tickets(batch);
    if (!group.any(mine)) {  // to the last batch without a gap, from which the next look starts again
      const std::uint32_t passed = count_leading(group, published);
      if (passed == 0) return false;
      const std::uint32_t last = group.first(static_cast<std::uint32_t>(group.index()) == passed - 1, first);
      cursor.batch += passed;
      if (is_before(last, ticket)) cursor.ticket = last;
      return false;
    }
    if (mine) {
      observe<Scope::device>(&cell);
      task = shape_.task(batch, ticket - first);
    }
    cursor = group.first(mine, TaskCursor{cursor.batch + static_cast<std::uint32_t>(group.index()), first});
    task = group.first(mine, task);
    return true;
  }

  /// The task behind that of a ticket claimed with it, which find() has just found, in the same batch; of no tiles: there is
  /// none.
  FLASHMOE_HD Task behind(std::uint32_t ticket, const TaskCursor& cursor) const {
    return shape_.task(decode(peek(&cell_of(cursor.batch))), ticket + 1 - cursor.ticket);
  }

  FLASHMOE_HD const TaskShape& shape() const { return shape_; }

 private:
  FLASHMOE_HD static bool is_before(std::uint32_t a, std::uint32_t b) { return static_cast<std::int32_t>(a - b) < 0; }
  FLASHMOE_HD static TaskCursor cursor_of(std::uint64_t published) {
    return {static_cast<std::uint32_t>(published >> 32), static_cast<std::uint32_t>(published)};
  }
  FLASHMOE_HD static std::uint64_t word_of(const TaskCursor& cursor) { return std::uint64_t{cursor.batch} << 32 | cursor.ticket; }
  FLASHMOE_HD std::uint64_t& cell_of(std::uint32_t batch) const { return cells_[batch & (capacity_ - 1)]; }

  // A cell: first ticket, then 2 bits of kind, 12 of index, 16 of size, 1 of halved, 1 of narrow.
  static_assert(Limits::num_ranks * Limits::wave_ring <= 1 << 12);  // wave slots; rings of m-blocks have up to 512 places
  static_assert(Limits::wave_tokens / kReduceSlots < 1 << 16);
  FLASHMOE_HD static std::uint64_t encode(std::uint32_t ticket, const TaskBatch& batch) {
    const std::uint32_t what = static_cast<std::uint32_t>(batch.kind) | batch.index << 2 | batch.size << 14 |
                               (batch.halved ? 1u << 30 : 0u) | (batch.narrow ? 1u << 31 : 0u);
    return std::uint64_t{what} << 32 | ticket;
  }
  FLASHMOE_HD static TaskBatch decode(std::uint64_t word) {
    const auto what = static_cast<std::uint32_t>(word >> 32);
    return {static_cast<TaskKind>(what & 3u), what >> 2 & 0xfffu, what >> 14 & 0xffffu, what >> 31 != 0, (what >> 30 & 1u) != 0};
  }

  /// store(cell, word) for the batch of every thread that has one.
  template <class Group, class Store>
  FLASHMOE_HD void with_place(const Group& group, const TaskBatch& mine, TaskCursor* sole, const Store& store) const {
    const Scan batches = group.number(mine.size > 0);
    const Scan tickets = group.scan(mine.size > 0 ? shape_.num_tickets(mine) : 0u);
    if (batches.total == 0) return;
    const std::uint64_t before = group.broadcast(group.leader() ? reserve(batches.total, tickets.total, sole) : 0);
    if (mine.size == 0) return;
    const auto batch = static_cast<std::uint32_t>(before >> 32) + batches.before;
    store(cell_of(batch), encode(static_cast<std::uint32_t>(before) + tickets.before, mine));
  }

  /// Both halves at once, so that batches and their tickets have one order; a carry must not cross. A sole publisher need
  /// not ask what is published. One thread.
  FLASHMOE_HD std::uint64_t reserve(std::uint32_t batches, std::uint32_t tickets, TaskCursor* sole) const {
    const auto after = [&](std::uint64_t before) {
      const TaskCursor next = cursor_of(before);
      return word_of({next.batch + batches, next.ticket + tickets});
    };
    if (sole == nullptr) return draw(&state_->published, after);
    const std::uint64_t before = word_of(*sole);
    *sole = cursor_of(after(before));
    set(&state_->published, word_of(*sole));
    return before;
  }

  TaskRingState* state_;
  std::uint64_t* cells_;
  std::uint32_t capacity_;
  TaskShape shape_;
  std::uint32_t given_;
};

}  // namespace flashmoe
