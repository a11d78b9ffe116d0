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
    publishing_ = !group.broadcast(group.leader() && publication_.advance(call_.ready_ring()));
    return publishing_ ? waiting(SignalKind::task, 0, 0) : Step::advanced;
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
    expert_ = 0;
    experts_left_ = geometry().num_local_experts;
    idle_steps_ = 0;
  }

  FLASHMOE_HD std::uint32_t pending_rows(int expert) const {
    std::uint32_t rows = 0;
    for (int slot = 0; slot < geometry().num_ranks * geometry().wave_ring; ++slot) {
      rows += observe<Scope::device>(&call_.landed(slot)[expert]) - call_.taken(slot)[expert];
    }
    return rows;
  }

  /// One m-block of the first expert that has one, or the end of the pass.
  FLASHMOE_HD Step cut_next(const Group& group) {
    const std::uint32_t full = static_cast<std::uint32_t>(geometry().tile.rows);
    while (experts_left_ > 0) {
      const std::uint32_t pending = pending_rows(expert_);
      if (pending >= full || (flushing_ && pending > 0)) return cut(group, expert_);
      ++expert_;
      --experts_left_;
    }
    cutting_ = false;
    flushing_ = false;
    return Step::advanced;
  }

  FLASHMOE_HD Step cut(const Group& group, int expert) {
    const auto index = static_cast<std::uint32_t>(num_cut_ % static_cast<std::uint64_t>(geometry().num_m_blocks));
    MBlock& block = call_.m_block(index);
    if (observe<Scope::device>(&block.free) == 0) {
      return waiting(SignalKind::task, num_cut_, observe<Scope::device>(&call_.counters().retired_blocks));
    }
    group.sync();
    if (group.leader()) {
      block.local_expert = static_cast<std::uint32_t>(expert);
      block.free = 0;
      block.up_done = 0;
      block.down_done = 0;
      take_rows(block, expert);
      publication_.begin(call_.ready_ring(), {.kind = TaskKind::up, .index = index},
                         static_cast<std::uint32_t>(geometry().num_up_tiles()));
    }
    publishing_ = true;
    ++num_cut_;
    return Step::advanced;
  }

  /// Fills the block with landed rows, this rank's own first.
  FLASHMOE_HD void take_rows(MBlock& block, int expert) {
    const Geometry& g = geometry();
    const std::uint32_t most = static_cast<std::uint32_t>(g.tile.rows);
    block.num_rows = 0;
    block.num_segments = 0;
    for (int offset = 0; offset < g.num_ranks; ++offset) {
      const int source = (call_.rank + offset) % g.num_ranks;
      for (int ring = 0; ring < g.wave_ring; ++ring) {
        if (block.num_rows == most || block.num_segments == MBlock::kMaxSegments) return;
        const int slot = call_.wave_slot(source, ring);
        std::uint32_t& taken = call_.taken(slot)[expert];
        const std::uint32_t available = observe<Scope::device>(&call_.landed(slot)[expert]) - taken;
        const std::uint32_t room = most - block.num_rows;
        const std::uint32_t rows = available < room ? available : room;
        if (rows == 0) continue;
        block.segments[block.num_segments++] = {static_cast<std::uint32_t>(slot),
                                                call_.expert_offsets(slot)[expert] + taken - call_.wave_base(slot)[expert], rows};
        taken += rows;
        block.num_rows += rows;
      }
    }
  }

  FLASHMOE_HD bool all_retired() const {
    return closed_ == kAllWavesClosed &&
           observe<Scope::device>(&call_.counters().retired_waves) == call_.counters().total_waves;
  }

  FLASHMOE_HD Step publish_exits(const Group& group) {
    exiting_ = true;
    if (group.leader()) {
      publication_.begin(call_.ready_ring(), {.kind = TaskKind::exit},
                         static_cast<std::uint32_t>(call_.roster.num_processors));
    }
    publishing_ = true;
    return Step::advanced;
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
  Publication publication_;  ///< the leader's
  bool publishing_ = false;
  std::uint64_t closed_ = 0;
  std::uint64_t version_ = 0;
  std::uint64_t num_cut_ = 0;
  int expert_ = 0;
  int experts_left_ = 0;
  int idle_steps_ = 0;
  bool cutting_ = false;
  bool flushing_ = false;
  bool exiting_ = false;
  bool finished_ = false;
  Wait wait_;
};

}  // namespace flashmoe
