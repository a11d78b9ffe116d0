// The queue of ready tasks: any actor publishes, processors take in order, each task once.
#pragma once

#include <cstdint>

#include "actors/signal.hpp"
#include "actors/task.hpp"

namespace flashmoe {

/// One cell. `turn` says whose it is: ticket t may fill cell t % capacity when turn == 2 * (t / capacity), and read
/// it when turn is one more. Turns only grow, so the ring needs no reset between epochs.
struct ReadyCell {
  std::uint64_t turn = 0;
  Task task;
};
static_assert(sizeof(ReadyCell) == 24);

struct ReadyRingState {
  std::uint64_t next_fill = 0;  ///< tickets handed to publishers
  std::uint64_t next_take = 0;  ///< tickets handed to processors
};

/// Trivially copyable view of the ring. Capacity is a power of two.
class ReadyRing {
 public:
  FLASHMOE_HD ReadyRing(ReadyRingState* state, ReadyCell* cells, std::uint32_t capacity)
      : state_(state), cells_(cells), capacity_(capacity) {}

  /// Takes `count` consecutive tickets to fill. Memory ordering: relaxed; filling orders.
  FLASHMOE_HD std::uint64_t reserve(std::uint64_t count) const {
    return detail::AtomicRef<Scope::device, std::uint64_t>(state_->next_fill)
        .fetch_add(count, cuda::memory_order_relaxed);
  }

  /// Fills a reserved ticket; false while the cell's reader of one lap before has not read it yet.
  /// Requires: ticket from reserve(), filled once. Guarantees: exactly one taker gets the task.
  /// Memory ordering: acquire on the free cell, release of the task and all the publisher wrote before.
  FLASHMOE_HD bool try_fill(std::uint64_t ticket, const Task& task) const {
    ReadyCell& cell = cells_[ticket % capacity_];
    if (observe<Scope::device>(&cell.turn) != 2 * (ticket / capacity_)) return false;
    cell.task = task;
    publish(&cell.turn, 2 * (ticket / capacity_) + 1);
    return true;
  }

  /// A ticket to take. The caller must read it with try_take until it succeeds.
  FLASHMOE_HD std::uint64_t claim() const {
    return detail::AtomicRef<Scope::device, std::uint64_t>(state_->next_take)
        .fetch_add(1, cuda::memory_order_relaxed);
  }

  /// Reads the task of a claimed ticket once it is published.
  /// Memory ordering: acquire on the filled cell, release of the emptied one.
  FLASHMOE_HD bool try_take(std::uint64_t ticket, Task& task) const {
    ReadyCell& cell = cells_[ticket % capacity_];
    if (observe<Scope::device>(&cell.turn) != 2 * (ticket / capacity_) + 1) return false;
    task = cell.task;
    publish(&cell.turn, 2 * (ticket / capacity_) + 2);
    return true;
  }

 private:
  ReadyRingState* state_;
  ReadyCell* cells_;
  std::uint32_t capacity_;
};

/// Consecutive tasks on their way into the ring, one ticket a thread of the group. advance() never blocks; the owner
/// calls it from step() until it returns true, so a full ring delays only the publisher. Progress: a cell stays full
/// only while a processor holds its ticket, and reading a published cell waits for nobody.
class Publication {
 public:
  /// Takes the tickets of `count` tasks.
  template <class Group>
  FLASHMOE_HD void begin(const Group& group, const ReadyRing& ring, std::uint64_t count) {
    begin_ = group.broadcast(group.leader() ? ring.reserve(count) : 0);
    next_ = begin_;
    end_ = begin_ + count;
    mine_filled_ = false;
  }

  /// Publishes what fits now; true when all tasks are out. task_of(number) is task `number` of the count, the same at
  /// every call.
  template <class Group, class TaskOf>
  FLASHMOE_HD bool advance(const Group& group, const ReadyRing& ring, const TaskOf& task_of) {
    for (; next_ < end_; next_ += static_cast<std::uint64_t>(group.size())) {
      const std::uint64_t ticket = next_ + static_cast<std::uint64_t>(group.index());
      if (ticket < end_ && !mine_filled_) mine_filled_ = ring.try_fill(ticket, task_of(ticket - begin_));
      if (!group.all(ticket >= end_ || mine_filled_)) return false;
      mine_filled_ = false;
    }
    return true;
  }

 private:
  std::uint64_t begin_ = 0;
  std::uint64_t next_ = 0;
  std::uint64_t end_ = 0;
  bool mine_filled_ = false;
};

}  // namespace flashmoe
