// Scheduler: cuts m-blocks from landed rows, grants them a place in the intermediate ring, and publishes their up
// tasks. Down tasks follow from the processors: whoever stores an m-block's last up tile publishes them. One a rank.
//
// An m-block is cut when an expert has a full tile of landed rows; a smaller one when no source can add to it soon:
// all rows of its wave have landed everywhere, or nothing else is left to do while a source is late. So a late rank
// delays its own rows only, and no processor waits while landed rows exist.
#pragma once

#include <cstdint>

#include "actors/call.hpp"
#include "actors/signal.hpp"
#include "actors/step.hpp"
#include "actors/subscriber.hpp"

namespace flashmoe {

template <class Group>
class Scheduler {
 public:
  FLASHMOE_HD explicit Scheduler(const Call& call) : call_(call) {}

  FLASHMOE_HD Step step(const Group& group) {
    if (finished_) return Step::finished;
    if (publishing_) return publish_more(group);
    if (exiting_) {
      finished_ = true;
      return Step::finished;
    }
    read_progress();
    if (cutting_) return cut_next(group);
    if (all_retired()) return publish_exits(group);
    return flush_if_starved();
  }

  FLASHMOE_HD const Wait& wait() const { return wait_; }

 private:
  FLASHMOE_HD const Geometry& geometry() const { return call_.geometry(); }

  FLASHMOE_HD Step waiting(SignalKind signal, std::uint64_t expected, std::uint64_t seen) {
    wait_ = {signal, call_.rank, expected, seen};
    return Step::idle;
  }

  FLASHMOE_HD Step publish_more(const Group& group) {
    publishing_ = !publication_.advance(group, call_.ready_ring());
    return publishing_ ? waiting(SignalKind::task, 0, 0) : Step::advanced;
  }

  FLASHMOE_HD Step begin_publication(const Group& group, const Task& first, int count) {
    publication_.begin(group, call_.ready_ring(), first, static_cast<std::uint32_t>(count));
    publishing_ = true;
    return Step::advanced;
  }

  /// New rows or newly closed waves start a pass over the experts. `closed` is read before the rows it speaks of.
  FLASHMOE_HD void read_progress() {
    const std::uint64_t closed = observe<Scope::device>(&call_.counters().closed_waves);
    const std::uint64_t version = observe<Scope::device>(&call_.counters().landed_version);
    if (closed != closed_) {
      closed_ = closed;
      start_pass(true);
    } else if (version != version_) {
      start_pass(flushing_);
    }
    version_ = version;
  }

  FLASHMOE_HD void start_pass(bool flushing) {
    cutting_ = true;
    flushing_ = flushing;
    first_expert_ = 0;
    looked_ = false;
    idle_steps_ = 0;
  }

  FLASHMOE_HD std::uint32_t pending_rows(int expert) const {
    std::uint32_t rows = 0;
    for (int slot = 0; slot < geometry().num_ranks * geometry().wave_ring; ++slot) {
      rows += peek(&call_.landed(slot)[expert]) - call_.taken(slot)[expert];
    }
    return rows;
  }

  FLASHMOE_HD bool enough(std::uint32_t rows) const {
    return rows >= static_cast<std::uint32_t>(geometry().tile.rows) || (flushing_ && rows > 0);
  }

  /// One m-block of the next expert that has one, or the end of the pass. Each thread of the group watches one expert.
  FLASHMOE_HD Step cut_next(const Group& group) {
    for (; first_expert_ < geometry().num_local_experts; first_expert_ += group.size()) {
      const int expert = first_expert_ + group.index();
      const bool mine = expert < geometry().num_local_experts;
      if (!looked_) my_pending_ = mine ? pending_rows(expert) : 0;
      looked_ = true;
      const bool wanted = mine && enough(my_pending_);
      if (group.any(wanted)) {
        const Scan scan = group.scan(wanted ? 1u : 0u);
        return cut(group, group.first(wanted && scan.before == 0, expert));
      }
      looked_ = false;
    }
    cutting_ = false;
    flushing_ = false;
    // The end of a pass is no progress: a rank that flushes in vain while a peer is missing must look stalled.
    return waiting(SignalKind::landed, num_cut_, observe<Scope::device>(&call_.counters().retired_blocks));
  }

  FLASHMOE_HD Step cut(const Group& group, int expert) {
    const auto index = static_cast<std::uint32_t>(num_cut_ % static_cast<std::uint64_t>(geometry().num_m_blocks));
    MBlock& block = call_.m_block(index);
    if (observe<Scope::device>(&block.free) == 0) {
      return waiting(SignalKind::task, num_cut_, observe<Scope::device>(&call_.counters().retired_blocks));
    }
    group.sync();
    const std::uint32_t rows = take_rows(group, block, expert);
    if (group.leader()) {
      block.local_expert = static_cast<std::uint32_t>(expert);
      block.num_rows = rows;
      block.free = 0;
      block.up_done = 0;
      block.down_done = 0;
    }
    if (expert == first_expert_ + group.index()) my_pending_ = my_pending_ > rows ? my_pending_ - rows : 0;
    group.sync();
    ++num_cut_;
    return begin_publication(group, {.kind = TaskKind::up, .index = index}, geometry().num_up_tiles());
  }

  /// Fills the block's segments with landed rows, this rank's own first; returns how many rows. Each thread of the
  /// group looks at one wave slot.
  FLASHMOE_HD std::uint32_t take_rows(const Group& group, MBlock& block, int expert) {
    const Geometry& g = geometry();
    const std::uint32_t most = static_cast<std::uint32_t>(g.tile.rows);
    std::uint32_t num_rows = 0;
    std::uint32_t num_segments = 0;
    for (int base = 0; base < g.num_ranks * g.wave_ring; base += group.size()) {
      const int order = base + group.index();
      const bool valid = order < g.num_ranks * g.wave_ring;
      const int slot = (call_.rank * g.wave_ring + order) % (g.num_ranks * g.wave_ring);
      const std::uint32_t taken = valid ? call_.taken(slot)[expert] : 0;
      const std::uint32_t available = valid ? observe<Scope::device>(&call_.landed(slot)[expert]) - taken : 0;
      const std::uint32_t before = num_rows + group.scan(available).before;
      const std::uint32_t room = before < most ? most - before : 0;
      std::uint32_t rows = available < room ? available : room;
      const Scan used = group.scan(rows > 0 ? 1u : 0u);
      const std::uint32_t segment = num_segments + used.before;
      if (segment >= static_cast<std::uint32_t>(MBlock::kMaxSegments)) rows = 0;
      if (rows > 0) {
        block.segments[segment] = {static_cast<std::uint32_t>(slot),
                                   call_.expert_offsets(slot)[expert] + taken - call_.wave_base(slot)[expert], rows};
        call_.taken(slot)[expert] = taken + rows;
      }
      num_rows += group.scan(rows).total;
      num_segments += used.total;
    }
    const auto limit = static_cast<std::uint32_t>(MBlock::kMaxSegments);
    if (group.leader()) block.num_segments = num_segments < limit ? num_segments : limit;
    return num_rows;
  }

  FLASHMOE_HD bool all_retired() const {
    return closed_ == kAllWavesClosed &&
           observe<Scope::device>(&call_.counters().retired_waves) == call_.counters().total_waves;
  }

  FLASHMOE_HD Step publish_exits(const Group& group) {
    exiting_ = true;
    return begin_publication(group, {.kind = TaskKind::exit}, call_.roster.num_processors);
  }

  /// Nothing to cut. When nothing runs either, but rows wait for a fuller tile, stop waiting after a while.
  FLASHMOE_HD Step flush_if_starved() {
    const std::uint64_t retired = observe<Scope::device>(&call_.counters().retired_blocks);
    if (retired == num_cut_ && closed_ != kAllWavesClosed && ++idle_steps_ == call_.flush_after_idle_steps) {
      start_pass(true);
      return Step::idle;
    }
    return waiting(SignalKind::landed, num_cut_, retired);
  }

  const Call& call_;
  Publication publication_;
  bool publishing_ = false;
  std::uint64_t closed_ = 0;
  std::uint64_t version_ = 0;
  std::uint64_t num_cut_ = 0;
  int first_expert_ = 0;           ///< of the group's current round of the pass
  std::uint32_t my_pending_ = 0;   ///< rows of this thread's expert
  bool looked_ = false;            ///< my_pending_ is known
  int idle_steps_ = 0;
  bool cutting_ = false;
  bool flushing_ = false;
  bool exiting_ = false;
  bool finished_ = false;
  Wait wait_;
};

}  // namespace flashmoe
