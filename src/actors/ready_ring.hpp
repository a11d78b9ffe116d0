// The queue of tasks: any actor publishes, processors take in order, each task once.
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

  /// Fills the reserved tickets ticket_of(i), for each bit i of `wanted`, whose cells are free, with task_of(ticket).
  /// Returns the bits of those filled: a cell is taken while its reader of one lap before has not read it yet.
  /// Requires: tickets from reserve(), each filled once. Guarantees: exactly one taker gets each task.
  /// Memory ordering: acquire on the free cells, release of the tasks and all the publisher wrote before.
  template <int count, class TicketOf, class TaskOf>
  FLASHMOE_HD std::uint32_t try_fill(std::uint32_t wanted, const TicketOf& ticket_of, const TaskOf& task_of) const {
    std::uint64_t* turns[count];
    std::uint64_t seen[count];
    FLASHMOE_UNROLL
    for (int i = 0; i < count; ++i) turns[i] = (wanted >> i & 1u) != 0 ? &cell_of(ticket_of(i)).turn : nullptr;
    observe_all(turns, seen);
    Task tasks[count];  // what they are read from, all at once
    std::uint32_t filled = 0;
    FLASHMOE_UNROLL
    for (int i = 0; i < count; ++i) {
      const std::uint64_t ticket = ticket_of(i);
      if (turns[i] == nullptr || seen[i] != free_turn(ticket)) {
        turns[i] = nullptr;
        continue;
      }
      tasks[i] = task_of(ticket);
      seen[i] = free_turn(ticket) + 1;
      filled |= 1u << i;
    }
    FLASHMOE_UNROLL
    for (int i = 0; i < count; ++i) {
      if (turns[i] != nullptr) cell_of(ticket_of(i)).task = tasks[i];
    }
    if (filled != 0) publish_all(turns, seen);
    return filled;
  }

  /// A ticket to take. The caller must try to read it until it succeeds, by try_take() or by try_read() and give_back().
  FLASHMOE_HD std::uint64_t claim() const {
    return detail::AtomicRef<Scope::device, std::uint64_t>(state_->next_take)
        .fetch_add(1, cuda::memory_order_relaxed);
  }

  /// Reads the task of a claimed ticket once it is published. The reader must give_back() the cell.
  /// Memory ordering: acquire.
  FLASHMOE_HD bool try_read(std::uint64_t ticket, Task& task) const {
    const ReadyCell& cell = cell_of(ticket);
    if (observe<Scope::device>(&cell.turn) != free_turn(ticket) + 1) return false;
    task = cell.task;
    return true;
  }
  /// Memory ordering: release.
  FLASHMOE_HD void give_back(std::uint64_t ticket) const { publish(&cell_of(ticket).turn, free_turn(ticket) + 2); }

  /// Both at once.
  FLASHMOE_HD bool try_take(std::uint64_t ticket, Task& task) const {
    if (!try_read(ticket, task)) return false;
    give_back(ticket);
    return true;
  }

 private:
  FLASHMOE_HD ReadyCell& cell_of(std::uint64_t ticket) const { return cells_[ticket & (capacity_ - 1)]; }
  /// What a cell's turn reads when it waits for this ticket.
  FLASHMOE_HD std::uint64_t free_turn(std::uint64_t ticket) const { return 2 * (ticket / capacity_); }

  ReadyRingState* state_;
  ReadyCell* cells_;
  std::uint32_t capacity_;
};

/// Consecutive tasks on their way into the ring, some tickets a thread of the group. advance() never blocks; the owner
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
    filled_ = 0;
  }

  /// Publishes what fits now; true when all tasks are out. task_of(number) is task `number` of the count, the same at
  /// every call.
  template <class Group, class TaskOf>
  FLASHMOE_HD bool advance(const Group& group, const ReadyRing& ring, const TaskOf& task_of) {
    const auto size = static_cast<std::uint64_t>(group.size());
    const auto index = static_cast<std::uint64_t>(group.index());
    for (; next_ < end_; next_ += kAtOnce * size) {
      const auto ticket_of = [&](int i) { return next_ + static_cast<std::uint64_t>(i) * size + index; };
      std::uint32_t mine = 0;
      FLASHMOE_UNROLL
      for (int i = 0; i < kAtOnce; ++i) mine |= ticket_of(i) < end_ ? 1u << i : 0u;
      if (mine != filled_) {
        filled_ |= ring.try_fill<kAtOnce>(mine & ~filled_, ticket_of,
                                          [&](std::uint64_t ticket) { return task_of(ticket - begin_); });
      }
      if (!group.all(mine == filled_)) return false;
      filled_ = 0;
    }
    return true;
  }

 private:
  static constexpr int kAtOnce = 4;  ///< tickets of a thread: fences are what publishing costs on a GPU

  std::uint64_t begin_ = 0;
  std::uint64_t next_ = 0;
  std::uint64_t end_ = 0;
  std::uint32_t filled_ = 0;  ///< tickets of the round that this thread has filled, bit by bit
};

}  // namespace flashmoe
