// Completion: what follows from a finished task: an up tile counts for the down tasks that wait for it, the last down
// tile of an m-block adds to the result counters, retires its rows (counted form) and gives its place back. The tail of a
// processor, apart because an engine that overlaps tiles lets other threads do it.
#pragma once

#include <cstdint>

#include "actors/call.hpp"
#include "actors/signal.hpp"
#include "core/divide.hpp"

namespace flashmoe {

/// Token block, of its wave, of the token whose result a return row is.
FLASHMOE_HD inline int token_block_of(const Geometry& g, std::uint32_t return_row) {
  static_assert(Limits::wave_tokens * Limits::top_k < 1 << 21);
  return divide_small(divide_small(static_cast<int>(return_row), g.top_k), g.token_block);
}

/// The result counter that a row of a counted per_route call adds to: the wave slot it is of, and its token block.
FLASHMOE_HD inline std::uint32_t result_counter(const Geometry& g, std::uint32_t wave_slot, std::uint32_t return_row) {
  static_assert(Limits::num_ranks * Limits::wave_ring <= 1 << 16);
  return wave_slot << 16 | static_cast<std::uint32_t>(token_block_of(g, return_row));
}

template <class Group, class Fabric>
class Completion {
 public:
  FLASHMOE_HD Completion(const Call& call, Fabric fabric) : call_(call), fabric_(fabric) {}

  /// Starts on a finished up, down or reduce task. Requires idle(), and that the tile's stores are ordered before this
  /// call: made by the group's threads, or seen by its leader.
  FLASHMOE_HD void begin(const Group& group, const Task& task) {
    start(group, task, [&](const MBlock& block) { signal_results(group, block); });
  }
  /// The same, where the caller knows the m-block's `num_rows` rows' counters, see result_counter().
  FLASHMOE_HD void begin(const Group& group, const Task& task, const std::uint32_t* counters, std::uint32_t num_rows) {
    start(group, task, [&](const MBlock&) { signal_results(group, counters, num_rows); });
  }

  /// True when the task has no more consequences to take care of.
  FLASHMOE_HD bool idle() const { return !retiring_; }

  /// One bounded piece of what is left: retires the finished m-block's rows of one wave; after the last gives its place
  /// back. Requires !idle().
  FLASHMOE_HD void step(const Group& group) {
    MBlock& block = call_.m_block(task_.index);
    if (call_.lined() || segment_ == block.num_segments) {  // nothing waits for lined waves to retire
      release(group, block);
      retiring_ = false;
    } else {
      retire(group, block, block.segments[segment_++]);
    }
  }

 private:
  FLASHMOE_HD const Geometry& geometry() const { return call_.geometry(); }

  /// `signal_results`: of a down task, once its m-block is complete.
  template <class SignalResults>
  FLASHMOE_HD void start(const Group& group, const Task& task, const SignalResults& signal_results) {
    task_ = task;
    switch (task.kind) {
      case TaskKind::up: finish_up(group); break;
      case TaskKind::down: finish_down(group, signal_results); break;
      case TaskKind::reduce: finish_reduce(group); break;
      case TaskKind::exit: break;
    }
  }

  /// True in all threads of the group when this task's add completes the count.
  template <class T>
  FLASHMOE_HD static bool completes(const Group& group, T* counter, T amount, T total) {
    group.sync();
    bool last = false;
    if (group.leader()) last = join(counter, amount) + amount == total;
    return group.broadcast(last);
  }

  FLASHMOE_HD void finish_up(const Group& group) {
    group.sync();
    if (group.leader()) add<Scope::device>(&call_.m_block(task_.index).up_done, half_tiles(task_));
  }

  template <class SignalResults>
  FLASHMOE_HD void finish_down(const Group& group, const SignalResults& signal_results) {
    MBlock& block = call_.m_block(task_.index);
    const auto wanted = static_cast<std::uint32_t>(geometry().num_down_tiles());
    if (!completes(group, &block.down_done, std::uint32_t{task_.num_tiles}, wanted)) return;
    if (!call_.lined() && !call_.pre_reduced()) signal_results(block);
    segment_ = 0;
    retiring_ = true;
  }

  /// Rows of an m-block whose entries a thread reads side by side.
  static constexpr std::uint32_t kRowsEach = 4;

  /// One add for those of each kRowsEach rows that go back to one token block. The down tiles of the block are all pushed, which
  /// all of the adds tell.
  FLASHMOE_HD void signal_results(const Group& group, const MBlock& block) {
    const std::uint32_t num_segments = block.num_segments;
    Segment rows = block.segments[0];
    fabric_.release(geometry().num_ranks > 1);
    for (std::uint32_t segment = 0; segment < num_segments; ++segment) {
      const Segment next = block.segments[segment + 1 < num_segments ? segment + 1 : segment];
      const RouteImage image = call_.image(static_cast<int>(rows.wave_slot));
      for (std::uint32_t first = static_cast<std::uint32_t>(group.index()) * kRowsEach; first < rows.count;
           first += static_cast<std::uint32_t>(group.size()) * kRowsEach) {
        std::size_t counters[kRowsEach] = {};
        std::uint64_t cells[kRowsEach];
        FLASHMOE_UNROLL
        for (std::uint32_t i = 0; i < kRowsEach; ++i) {
          cells[i] = first + i < rows.count ? 1 : 0;
          if (cells[i] == 0) continue;
          const std::uint32_t return_row = image.entry(rows.first_entry + first + i).return_row;
          counters[i] = call_.heap.result_count(call_.rank, call_.ring_slot_of(rows.wave_slot),
                                                token_block_of(geometry(), return_row));
        }
        FLASHMOE_UNROLL
        for (std::uint32_t i = 1; i < kRowsEach; ++i) {
          if (cells[i] == 0 || counters[i] != counters[i - 1]) continue;
          cells[i] += cells[i - 1];
          cells[i - 1] = 0;
        }
        fabric_.signal_all(call_.source_of(rows.wave_slot), counters, cells);
      }
      rows = next;
    }
  }

  /// The same by result_counter() of every row.
  FLASHMOE_HD void signal_results(const Group& group, const std::uint32_t* counters, std::uint32_t num_rows) {
    fabric_.release(geometry().num_ranks > 1);
    for (std::uint32_t first = static_cast<std::uint32_t>(group.index()) * kRowsEach; first < num_rows;
         first += static_cast<std::uint32_t>(group.size()) * kRowsEach) {
      std::uint64_t cells = 0;
      FLASHMOE_UNROLL
      for (std::uint32_t i = 0; i < kRowsEach; ++i) {
        if (first + i >= num_rows) break;
        ++cells;
        const std::uint32_t counter = counters[first + i];
        if (i + 1 < kRowsEach && first + i + 1 < num_rows && counters[first + i + 1] == counter) continue;
        const std::uint32_t wave_slot = counter >> 16;
        const std::size_t offsets[] = {
            call_.heap.result_count(call_.rank, call_.ring_slot_of(wave_slot), static_cast<int>(counter & 0xffffu))};
        fabric_.signal_all(call_.source_of(wave_slot), offsets, {cells});
        cells = 0;
      }
    }
  }

  FLASHMOE_HD void retire(const Group& group, MBlock& block, const Segment& rows) {
    WaveSlot& wave = call_.wave(static_cast<int>(rows.wave_slot));
    if (!completes(group, &wave.retired, std::uint64_t{rows.count}, std::uint64_t{wave.num_entries})) return;
    if (!call_.pre_reduced()) {
      retire_wave(group, rows.wave_slot);
      return;
    }
    if (group.leader()) {
      wave.completed_by = task_.index;
      join(&block.holders, 1u);
    }
    call_.task_ring().publish_one(group, {.kind = TaskKind::reduce,
                                          .index = rows.wave_slot,
                                          .size = (wave.num_slots + kReduceSlots - 1) / kReduceSlots});
  }

  /// Gives the m-block's place back when nothing holds it any more: where waves are not reduced only its tasks did.
  FLASHMOE_HD void release(const Group& group, MBlock& block) {
    if (call_.pre_reduced()) {
      if (!completes(group, &block.holders, ~std::uint32_t{0}, 0u)) return;
    } else {
      group.sync();  // no thread reads the block any more
    }
    if (group.leader()) {
      publish(&block.free, 1u);
      tally(&call_.counters().retired_blocks, std::uint64_t{1});
    }
  }

  /// All of the wave's results are on their way: its ring slot may be used again.
  FLASHMOE_HD void retire_wave(const Group& group, std::uint32_t wave_slot) {
    if (!group.leader()) return;
    if (!call_.lined()) {
      fabric_.signal(call_.source_of(wave_slot), call_.heap.consumed(call_.rank, call_.ring_slot_of(wave_slot)), 1);
    }
    add<Scope::device>(&call_.counters().retired_waves, std::uint64_t{1});
  }

  FLASHMOE_HD void finish_reduce(const Group& group) {
    const std::uint32_t wave_slot = task_.wave_slot;
    WaveSlot& wave = call_.wave(static_cast<int>(wave_slot));
    const std::uint32_t count = reduce_slots(wave, task_.tile);
    group.sync();
    signal_cells(group, wave_slot, task_.tile * kReduceSlots, count);
    if (!completes(group, &wave.reduced, std::uint64_t{count}, std::uint64_t{wave.num_slots})) return;
    MBlock& block = call_.m_block(wave.completed_by);  // the wave's slot may be used again once it is retired
    retire_wave(group, wave_slot);
    release(group, block);
  }

  /// pre_reduced: one add per slot whose cell a reduce task made.
  FLASHMOE_HD void signal_cells(const Group& group, std::uint32_t wave_slot, std::uint32_t first, std::uint32_t count) {
    const RouteImage image = call_.image(static_cast<int>(wave_slot));
    for (std::uint32_t slot = first + static_cast<std::uint32_t>(group.index()); slot < first + count;
         slot += static_cast<std::uint32_t>(group.size())) {
      const std::uint32_t entry = first_entry_of(wave_slot, slot);
      if (entry == 0) continue;  // an own token that goes to other ranks alone
      fabric_.signal(call_.source_of(wave_slot),
                     call_.heap.result_count(call_.rank, call_.ring_slot_of(wave_slot),
                                             token_block_of(geometry(), image.entry(entry - 1).return_row)),
                     1);
    }
  }

  /// Entry + 1 of the slot's first route to this rank, or 0.
  FLASHMOE_HD std::uint32_t first_entry_of(std::uint32_t wave_slot, std::uint32_t slot) const {
    const std::uint32_t* routes = call_.slot_routes(static_cast<int>(wave_slot), slot);
    for (int choice = 0; choice < geometry().top_k; ++choice) {
      if (routes[choice] != 0) return routes[choice];
    }
    return 0;
  }

  const Call& call_;
  Fabric fabric_;
  bool retiring_ = false;
  Task task_;
  std::uint32_t segment_ = 0;
};

}  // namespace flashmoe
