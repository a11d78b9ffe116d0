// Dispatcher in lined form: sends ids first, then rows as lines, from which every receiver works the lists out for itself; and
// lands the rows that arrive as lines. No step waits for other dispatchers.
#pragma once

#include <cstdint>

#include "actors/call.hpp"
#include "actors/id_lines.hpp"
#include "actors/line_io.hpp"
#include "actors/route_plan.hpp"
#include "actors/signal.hpp"
#include "actors/step.hpp"

namespace flashmoe {

template <class Group, class Fabric>
class LinedDispatcher {
 public:
  FLASHMOE_HD LinedDispatcher(const Call& call, Fabric fabric, int index) : call_(call), fabric_(fabric), index_(index) {}

  FLASHMOE_HD Step step(const Group& group) {
    switch (phase_) {
      case Phase::send_ids: return send_ids(group);
      case Phase::push_lines: return push_lines(group);
      case Phase::land_lines: return land_lines(group);
      case Phase::done: return Step::finished;
    }
    return Step::finished;
  }

  FLASHMOE_HD const Wait& wait() const { return wait_; }

  FLASHMOE_HD bool done() const { return phase_ == Phase::done; }

 private:
  enum class Phase : std::uint8_t { send_ids, push_lines, land_lines, done };

  FLASHMOE_HD const Geometry& geometry() const { return call_.geometry(); }

  FLASHMOE_HD Step send_ids(const Group& group) {
    const std::int64_t wrong = find_wrong_id(group, geometry(), call_.topk_ids,
                                             share_of(call_.num_tokens, call_.roster.num_dispatchers, index_));
    if (wrong >= 0) {
      wait_ = wrong_id(call_, wrong);
      return Step::failed;
    }
    if (geometry().num_ranks == 1) {
      phase_ = Phase::done;
      return Step::finished;
    }
    flashmoe::send_ids(group, fabric_, call_, index_, 0);
    begin_lined_rows(group);
    return Step::advanced;
  }

  /// Next slot on every rank, counted over the tokens before that of this dispatcher's first part.
  FLASHMOE_HD void begin_lined_rows(const Group& group) {
    const Geometry& g = geometry();
    parts_ = static_cast<std::uint32_t>(call_.row_parts(call_.num_tokens));
    rows_ = share_of(call_.num_tokens * parts_, call_.roster.num_dispatchers, index_);
    const std::int64_t first_token = rows_.begin / parts_;
    for (int offset = 1; offset < g.num_ranks; ++offset) {
      const int destination = call_.peer_at(offset);
      const std::uint32_t slots = count_tokens_to(group, g, call_.topk_ids, first_token, destination);
      if (group.leader()) {
        call_.pushed_rows(index_)[destination] = {slots, 0};
        call_.lined_cursors(index_)[destination] = static_cast<std::uint32_t>(index_);
      }
    }
    group.sync();
    phase_ = Phase::push_lines;
  }

  FLASHMOE_HD Step push_lines(const Group& group) {
    const Geometry& g = geometry();
    if (rows_.size() == 0) {
      phase_ = Phase::land_lines;
      return Step::advanced;
    }
    const auto next = static_cast<std::uint32_t>(rows_.begin++);
    const std::int64_t token = next / parts_;
    const Part part = part_of(next % parts_, parts_);
    for (int offset = 1; offset < g.num_ranks; ++offset) {
      const int peer = call_.peer_at(offset);
      if (!goes_to(g, call_.topk_ids + token * g.top_k, peer)) continue;
      PushedRows& rows = call_.pushed_rows(index_)[peer];
      fabric_.put_row_lines(group, peer,
                            call_.heap.lined_row(call_.rank, call_.epoch, rows.first + rows.count) + part.line_bytes,
                            call_.x_row(token) + part.data_bytes, part.num_words, line_tag(call_.generation, call_.epoch));
      group.sync();
      if (group.leader()) ++rows.count;  // a dispatcher with parts of rows has one: see row_parts()
      group.sync();
    }
    return Step::advanced;
  }

  /// A part of a row, in whole lines.
  struct Part {
    std::uint32_t line_bytes;  ///< of the row's lines before it
    std::uint32_t data_bytes;  ///< of what they hold
    std::uint32_t num_words;
  };
  FLASHMOE_HD Part part_of(std::uint32_t part, std::uint32_t parts) const {
    const auto words = static_cast<std::uint32_t>(geometry().row_words());
    const auto lines = static_cast<std::uint32_t>(num_lines(words));
    constexpr std::uint32_t kDataWords = Line::kDataWords;
    const std::uint32_t first = lines * part / parts;
    const std::uint32_t end = lines * (part + 1) / parts * kDataWords;
    return {first * std::uint32_t{sizeof(Line)}, first * kDataWords * std::uint32_t{sizeof(std::uint64_t)},
            (end < words ? end : words) - first * kDataWords};
  }

  /// Copies this dispatcher's share of every source's rows, or of their parts, out of their lines as they come.
  FLASHMOE_HD Step land_lines(const Group& group) {
    const Geometry& g = geometry();
    std::uint32_t* cursors = call_.lined_cursors(index_);
    bool advanced = false;
    bool missing = false;
    for (int offset = 1; offset < g.num_ranks; ++offset) {
      const int source = call_.peer_at(offset);
      const std::uint64_t ready = group.broadcast(group.leader() ? peek(call_.lined_ready(source)) : 0);
      if (ready == 0) {
        note_missing(missing, {SignalKind::landed, call_.rank, 1, 0});
        continue;
      }
      const auto parts = static_cast<std::uint32_t>(call_.row_parts(static_cast<std::int64_t>(ready - 1)));
      const std::uint32_t slot = cursors[source] / parts;
      if (slot >= ready - 1) continue;
      const Part part = part_of(cursors[source] % parts, parts);
      const auto* lines = call_.heap_at<const Line>(call_.heap.lined_row(source, call_.epoch, slot) + part.line_bytes);
      const std::uint64_t tag = line_tag(call_.generation, call_.epoch);
      if (!try_load_lines(group, lines, part.num_words, tag, call_.lined_row(source, slot) + part.data_bytes)) {
        note_missing(missing, {SignalKind::row_lines, source, slot, 0});
        continue;
      }
      group.sync();
      if (group.leader()) {
        cursors[source] += static_cast<std::uint32_t>(call_.roster.num_dispatchers);
        join(call_.lined_arrivals(source) + slot / static_cast<std::uint32_t>(g.slot_block), std::uint64_t{1});
      }
      group.sync();
      advanced = true;
    }
    if (advanced) return Step::advanced;
    if (missing) return Step::idle;
    phase_ = Phase::done;
    return Step::finished;
  }

  FLASHMOE_HD void note_missing(bool& missing, const Wait& wait) {
    if (!missing || outranks(wait, wait_)) wait_ = wait;
    missing = true;
  }

  const Call& call_;
  Fabric fabric_;
  int index_;
  Phase phase_ = Phase::send_ids;
  std::uint32_t parts_ = 1;  ///< of each row to push
  TokenRange rows_;          ///< left to push, or parts of rows
  Wait wait_;
};

}  // namespace flashmoe
