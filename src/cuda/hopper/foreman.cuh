// Foreman: the processor of a Hopper block as far as other blocks see it. One warp takes tasks, one ahead of the loaders,
// finds out where their rows are, waits for those of m-blocks cut early and for the up tiles of down tasks, and takes care of what
// follows from tiles that are done.
#pragma once

#include <cstdint>

#include "actors/call.hpp"
#include "actors/completion.hpp"
#include "actors/step.hpp"
#include "cuda/groups.cuh"
#include "cuda/hopper/block.cuh"
#include "cuda/hopper/result_place.cuh"

namespace flashmoe::cuda_backend::hopper {

/// slot.rows: up, the address of the token row; down, the address of the result cell, of the partial row (pre_reduced),
/// or the packed place of the lines of the result's first tile in the task (lined; those of the others follow).
/// `kPairs`: see moe_kernel().
template <bool kPairs>
class Foreman {
 public:
  /// `decode_rows`: see describe_product().
  __device__ Foreman(const Call& call, const Fabric& fabric, BlockMemory& block, std::uint32_t decode_rows)
      : call_(call), fabric_(fabric), block_(block), decode_rows_(decode_rows), completion_(call, fabric),
        ring_(call.task_ring(kPairs ? 2 : 1)), cursor_(ring_.first()), pair_(block.mail) {
    if (kPairs || !has_given_ticket(call)) return;
    opening_ = claimed_ = true;
    ticket_ = cursor_.ticket + block.ticket;
  }

  __device__ Step step(const WarpGroup& group) {
    const Step completed = complete(group);
    const Step taken = on_their_way_      ? await_landing(group)
                       : waiting_for_rows_ ? release_rows(group)
                       : exiting_          ? Step::idle
                                           : take_in(group);
    if (exiting_ && num_completed_ == num_filled_) return Step::finished;
    return completed == Step::advanced || taken == Step::advanced ? Step::advanced : Step::idle;
  }

  /// Ends the block's other roles when this one ends early; tasks in slots run to their end, and so do those that the pair's
  /// first block shares.
  __device__ void dismiss(const WarpGroup& group) {
    if (!exiting_) {
      while (opening_ && !end_opening(group)) {  // it waits for nothing
      }
      if (on_their_way_) forget_rows(group);
      if (waiting_for_rows_) tell_stored();
      if (pair_.is_second()) take_in_shared(group);
      await_slot(group);
      shared_ = false;
      fill(group, {.kind = TaskKind::exit});
    }
    if (pair_.is_first() && group.leader()) pair_.end_offers();
  }

  __device__ const Wait& wait() const { return wait_; }
  /// Tasks whose weights were shared; the leader's.
  __device__ std::uint32_t num_shared() const { return num_shared_; }
  /// Whether Opening has found its first task.
  __device__ bool has_opened() const { return has_opened_; }

 private:
  __device__ bool next_is_done(const WarpGroup& group) const {
    return num_completed_ < num_filled_ &&
           group.all(block_.done[num_completed_ % kTaskSlots].test(parity_of(num_completed_)));
  }

  __device__ bool last_is_ending() const {
    const std::uint32_t last = num_filled_ - 1;
    return num_filled_ == 0 || block_.ending[last % kTaskSlots].test(parity_of(last));
  }

  /// Others wait for what follows from a finished task: all of it before the next look at the ring.
  __device__ Step complete(const WarpGroup& group) {
    if (awaits_ticket_ || !next_is_done(group)) return Step::idle;
    const TaskSlot& slot = block_.slots[num_completed_ % kTaskSlots];
    ++num_completed_;
    completion_.begin(group, Task{slot.task}, slot.counters, slot.num_rows);
    while (!completion_.idle()) completion_.step(group);
    return Step::advanced;
  }

  /// Claims a ticket only with a free slot, so that a claimed task never waits here; and only when the loaders are at the
  /// end of the task before it, so that no block hoards tasks. A pair's second block may have one offer waiting.
  __device__ Step take_in(const WarpGroup& group) {
    if (!claimed_ && !group.all(num_filled_ - num_completed_ < kTaskSlots && last_is_ending() && has_made_lists())) {
      return Step::idle;
    }
    Task task;
    if (!(claimed_ || claim(group)) || (opening_ && !end_opening(group)) || !ring_.find(group, ticket_, cursor_, task)) {
      wait_ = {SignalKind::task, call_.rank, claimed_ ? ticket_ : ticket_ + 1, 0};  // not claimed: the next at least
      return Step::idle;
    }
    claimed_ = false;
    group.sync();
    if (awaits_ticket_) {
      if (!same_task(task, block_.slots[0].task)) __trap();  // early_cut.cuh and opening.cuh disagree
      awaits_ticket_ = false;
      return Step::advanced;
    }
    if (pair_.is_first()) offer_next(group, task);
    fill(group, task);
    return Step::advanced;
  }

  /// Whether the consumers of a block that lends its stages are done with lists or m-blocks, where all others have a first task
  /// by then: they would take it sooner.
  __device__ bool has_made_lists() const {
    return kPairs || call_.given_tickets == 0 || num_filled_ > 0 || !lends_stages(call_) || block_.listed.test(0);
  }

  /// Takes over from Opening, once it has run.
  __device__ bool end_opening(const WarpGroup& group) {
    if (!group.all(block_.opened.test(0))) return false;
    opening_ = false;
    awaits_ticket_ = has_opened_ = block_.opens;
    num_filled_ = has_opened_ ? 1 : 0;
    return true;
  }

  /// Gets a ticket: of the ring, a pair's first block with another one for the second, to which it is offered.
  __device__ bool claim(const WarpGroup& group) {
    if (pair_.is_second()) {
      if (none_follows_) return false;
      TaskOffer offer;
      bool taken = false;
      if (group.leader()) taken = pair_.next_offer(offer);
      if (!group.broadcast(taken)) return false;
      offer = group.broadcast(offer);
      none_follows_ = offer.last();
      if (none_follows_) return false;
      ticket_ = offer.ticket();
      shared_ = offer.shared();
    } else {
      if constexpr (kPairs) {
        bool taken = false;
        if (group.leader()) taken = pair_.offer_taken();
        if (!group.broadcast(taken)) return false;
      }
      ticket_ = group.broadcast(group.leader() ? ring_.claim(kPairs ? 2 : 1) : 0);
    }
    claimed_ = true;
    return true;
  }

  /// Offers the pair's second block the ticket behind that of `task`.
  __device__ void offer_next(const WarpGroup& group, const Task& task) {
    bool shared = false;
    if (group.leader()) {
      const Task next = ring_.behind(ticket_, cursor_);
      shared = same_tiles(task, next);
      if (next.num_tiles > 0) {
        pair_.offer(ticket_ + 1, shared);
      } else {
        pair_.offer_nothing();
      }
    }
    shared_ = group.broadcast(shared);
  }

  /// What the pair's first block has begun to share, until it takes no more tasks. Needs no deadline: the first block sees, too,
  /// that the rank gives up, and tells at its end.
  __device__ void take_in_shared(const WarpGroup& group) {
    while (true) {
      if (!claimed_ && !claim(group)) {
        if (none_follows_) return;
        continue;
      }
      claimed_ = false;
      if (!shared_) continue;
      await_slot(group);
      Task task;
      while (!ring_.find(group, ticket_, cursor_, task)) {  // the first block has found the one before
      }
      group.sync();
      fill(group, task);
      if (waiting_for_rows_) tell_stored();
    }
  }

  /// Ends early: a slot is free once what runs has run.
  __device__ void await_slot(const WarpGroup& group) {
    while (num_filled_ - num_completed_ == kTaskSlots) {
      if (next_is_done(group)) ++num_completed_;
    }
  }

  /// The last task's rows are found.
  __device__ void tell_located() { block_.located[(num_filled_ - 1) % kTaskSlots].arrive(); }
  /// They are there, too.
  __device__ void tell_stored() {
    block_.stored[(num_filled_ - 1) % kTaskSlots].arrive();
    waiting_for_rows_ = false;
  }

  /// Lets the loaders read the intermediate once all up tiles of the m-block are stored.
  __device__ Step release_rows(const WarpGroup& group) {
    const Task& task = last_slot().task;
    const std::uint32_t wanted = half_tiles(call_.geometry().num_up_tiles());
    std::uint32_t stored = 0;
    if (group.leader()) stored = observe<Scope::device>(&call_.m_block(task.index).up_done);
    stored = group.broadcast(stored);
    if (stored == wanted) {
      tell_stored();
      return Step::advanced;
    }
    wait_ = {SignalKind::stored, call_.rank, wanted, stored};
    return Step::idle;
  }

  __device__ void note_shared(TaskSlot& slot) {
    slot.shared = shared_;
    slot.aligns = shared_ && pair_.claim_number() != last_shared_ + 1;
    if (!shared_) return;
    last_shared_ = pair_.claim_number();
    ++num_shared_;
  }

  __device__ TaskSlot& last_slot() const { return block_.slots[(num_filled_ - 1) % kTaskSlots]; }

  __device__ void tell_filled(std::uint32_t number) { block_.filled[number % kTaskSlots].arrive(); }

  __device__ void fill(const WarpGroup& group, const Task& task) {
    const std::uint32_t number = num_filled_;
    TaskSlot& slot = block_.slots[number % kTaskSlots];
    if (group.leader()) {
      slot.task = task;
      slot.number = number;
      if constexpr (kPairs) note_shared(slot);
    }
    if (task.kind == TaskKind::exit) {
      exiting_ = true;
      tell_filled(number);
      block_.stored[number % kTaskSlots].arrive();  // who looks at it alone sees a task, too
      return;
    }
    ++num_filled_;
    waiting_for_rows_ = true;
    if (task.kind == TaskKind::reduce) {
      if (group.leader()) slot.num_rows = reduce_slots(call_.wave(task.wave_slot), task.tile);
      tell_filled(number);
      tell_located();
      tell_stored();
    } else {
      find_rows(group, task, slot);
    }
  }

  /// What an up or down task multiplies, and where its rows are. Of an m-block that was cut early up tasks are handed out at once,
  /// for their weights, down tasks when its lists are there.
  __device__ void find_rows(const WarpGroup& group, const Task& task, TaskSlot& slot) {
    const MBlock& block = call_.m_block(task.index);
    const bool early = !kPairs && block.cut_early != 0;
    const bool tagged = !kPairs && block.tagged != 0;
    const std::uint32_t group_size = block.group_size;
    const std::uint32_t num_rows = block.num_rows;
    const BlockRows rows = rows_of(group, block);
    if (group.leader()) describe_product<kPairs>(slot, call_, block.local_expert, num_rows, group_size, tagged, decode_rows_);
    group.sync();
    if (early) {
      if (task.kind == TaskKind::up) tell_filled(num_filled_ - 1);
      on_their_way_ = true;
      awaited_ = rows;
      await_landing(group);
      return;
    }
    tell_filled(num_filled_ - 1);
    locate_rows(group, slot, rows);
    tell_located();
    if (task.kind == TaskKind::up) tell_stored();
  }

  /// Goes on once the last task's rows have landed, and their lists are there.
  __device__ Step await_landing(const WarpGroup& group) {
    TaskSlot& slot = last_slot();
    bool landed = true;
    if (static_cast<std::uint32_t>(group.index()) < awaited_.num_segments) {
      const Segment& mine = awaited_.mine;
      const std::uint32_t seen = observe<Scope::device>(&call_.landed(static_cast<int>(mine.wave_slot))[slot.local_expert]);
      landed = static_cast<std::int32_t>(seen - mine.landed) >= 0;
    }
    if (!group.all(landed)) {
      wait_ = {SignalKind::landed, call_.rank, slot.num_rows, 0};
      return Step::idle;
    }
    group.sync();
    on_their_way_ = false;
    if (slot.task.kind == TaskKind::down) tell_filled(num_filled_ - 1);
    locate_rows(group, slot, awaited_);
    tell_located();
    if (slot.task.kind == TaskKind::up) tell_stored();
    return Step::advanced;
  }

  /// Ends early: an up task that has been handed out reads something, a down task has not been.
  __device__ void forget_rows(const WarpGroup& group) {
    TaskSlot& slot = last_slot();
    on_their_way_ = false;
    if (slot.task.kind == TaskKind::down) {
      --num_filled_;
      waiting_for_rows_ = false;
      return;
    }
    for (auto row = static_cast<std::uint32_t>(group.index()); row < slot.num_rows; row += 32) {
      slot.rows[row] = reinterpret_cast<std::uint64_t>(call_.heap_base[call_.rank]);  // which has room for more than a row
    }
    tell_located();
  }

  /// An m-block's rows: each lane has one segment.
  struct BlockRows {
    Segment mine;
    std::uint32_t num_segments;
  };
  __device__ static BlockRows rows_of(const WarpGroup& group, const MBlock& block) {
    static_assert(MBlock::kMaxSegments == 32);
    const std::uint32_t num_segments = block.num_segments;
    Segment mine = block.segments[group.index()];  // read with the rest, whether it is one or not
    if (static_cast<std::uint32_t>(group.index()) >= num_segments) mine = {};
    return {mine, num_segments};
  }

  /// Each lane finds every 32nd row.
  __device__ void locate_rows(const WarpGroup& group, TaskSlot& slot, const BlockRows& rows) const {
    const Segment& mine = rows.mine;
    const std::uint32_t start = group.scan(mine.count).before;
    const std::uint32_t num_rows = slot.num_rows;
    const Task& task = slot.task;
    std::uint32_t sent_rows = 0;
    for (std::uint32_t base = 0; base < num_rows; base += 32) {
      const std::uint32_t row = base + static_cast<std::uint32_t>(group.index());
      RowOrigin origin{};
      for (std::uint32_t segment = 0; segment < rows.num_segments; ++segment) {
        const int lane = static_cast<int>(segment);
        const std::uint32_t begin = __shfl_sync(WarpGroup::kAll, start, lane);
        const std::uint32_t wave_slot = __shfl_sync(WarpGroup::kAll, mine.wave_slot, lane);
        const std::uint32_t first_entry = __shfl_sync(WarpGroup::kAll, mine.first_entry, lane);
        if (row >= begin) origin = {wave_slot, first_entry + (row - begin)};
      }
      if (row < num_rows) {
        slot.rows[row] = task.kind == TaskKind::up ? token_of(slot, row, origin) : result_of(slot, row, origin, sent_rows);
      }
    }
    if (task.kind == TaskKind::down && !call_.lined()) {
      const std::uint32_t sent = group.scan(sent_rows).total;
      if (sent > 0 && group.leader()) fabric_.count_payload(std::int64_t{sent} * down_bytes(task));
    }
  }

  __device__ std::uint64_t token_of(TaskSlot& slot, std::uint32_t row, const RowOrigin& origin) const {
    const RouteImage image = call_.image(static_cast<int>(origin.wave_slot));
    if (call_.math.weight_on_input) slot.weights[row] = image.weights(image.num_entries())[origin.entry];
    return reinterpret_cast<std::uint64_t>(token_row(call_, origin.wave_slot, image.entry(origin.entry)));
  }

  __device__ std::uint64_t result_of(TaskSlot& slot, std::uint32_t row, const RowOrigin& origin, std::uint32_t& sent_rows) const {
    const Geometry& g = call_.geometry();
    if (call_.pre_reduced()) {
      return reinterpret_cast<std::uint64_t>(call_.partial_row(static_cast<int>(origin.wave_slot), origin.entry));
    }
    const RouteEntry entry = call_.image(static_cast<int>(origin.wave_slot)).entry(origin.entry);
    const int source = call_.source_of(origin.wave_slot);
    if (call_.lined()) {
      return pack_place(source, call_.heap.lined_result(call_.epoch, entry.return_row, static_cast<int>(slot.task.tile)));
    }
    slot.counters[row] = result_counter(g, origin.wave_slot, entry.return_row);
    if (source != call_.rank) ++sent_rows;
    return reinterpret_cast<std::uint64_t>(
        fabric_.address(source, call_.heap.result_cell(call_.ring_slot_of(origin.wave_slot), entry.return_row)));
  }

  /// Bytes of one row of a down task.
  __device__ std::int64_t down_bytes(const Task& task) const {
    const Geometry& g = call_.geometry();
    const int rest = g.hidden - static_cast<int>(task.tile) * kDownColumns;
    const int columns = task.num_tiles * kDownColumns;
    return std::int64_t{rest < columns ? rest : columns} * g.element_bytes;
  }

  const Call& call_;
  const Fabric& fabric_;
  BlockMemory& block_;
  std::uint32_t decode_rows_;
  Completion<WarpGroup, Fabric> completion_;
  std::uint32_t num_filled_ = 0;     ///< tasks put into slots, exit not counted
  std::uint32_t num_completed_ = 0;  ///< tasks whose completion has begun
  TaskRing ring_;
  TaskCursor cursor_;
  BlockPair<kPairs> pair_;
  std::uint32_t ticket_ = 0;
  bool shared_ = false;              ///< the ticket's task, and the last filled, is shared with the pair's other block
  bool claimed_ = false;
  bool waiting_for_rows_ = false;    ///< the rows of the last task filled are not known to be there
  bool on_their_way_ = false;        ///< neither is that they have landed, of an m-block cut early
  BlockRows awaited_{};              ///< the same m-block's
  std::uint32_t last_shared_ = 0;    ///< the leader's: number of the last claim whose tasks were shared
  std::uint32_t num_shared_ = 0;     ///< the leader's: tasks shared
  bool opening_ = false;             ///< the ticket is a given one, whose task Opening looks for
  bool awaits_ticket_ = false;       ///< the task has been handed out; what follows from it waits until the ring has the ticket
  bool has_opened_ = false;
  bool none_follows_ = false;        ///< second block: the first takes no more tasks
  bool exiting_ = false;
  Wait wait_;
};

}  // namespace flashmoe::cuda_backend::hopper
