// Combiner: sums the results of this rank's tokens once they have returned, each token in the order choice
// 0..top_k-1 (per_route) or rank 0..num_ranks-1 (pre_reduced), in fp32 (fp64 for fp64 layers), rounded once.
// Combiner i runs beside dispatcher i. Counted: each takes the next token that none has taken; others may join late, such
// as processors without work. Lined: each takes every num_dispatchers-th down tile of a token.
#pragma once

#include <cstdint>

#include "actors/call.hpp"
#include "actors/combine_row.hpp"
#include "actors/line_io.hpp"
#include "actors/route_plan.hpp"
#include "actors/signal.hpp"
#include "actors/step.hpp"

namespace flashmoe {

template <class Group>
class Combiner {
 public:
  FLASHMOE_HD Combiner(const Call& call, int index) : call_(call), index_(index), next_(index) {}

  FLASHMOE_HD Step step(const Group& group) {
    if (finished_) return Step::finished;
    return call_.lined() ? combine_lines(group) : combine_next(group);
  }

  FLASHMOE_HD const Wait& wait() const { return wait_; }

 private:
  FLASHMOE_HD const Geometry& geometry() const { return call_.geometry(); }

  FLASHMOE_HD Step waiting(SignalKind signal, int peer, std::uint64_t expected, std::uint64_t seen) {
    wait_ = {signal, peer, expected, seen};
    return Step::idle;
  }

  // ---- counted form: next_ is a token of the call ----------------------------------------------------------------

  FLASHMOE_HD std::int64_t claim(const Group& group) const {
    return group.leader() ? static_cast<std::int64_t>(join(&call_.counters().combine_claims, std::uint64_t{1})) : 0;
  }

  FLASHMOE_HD Step combine_next(const Group& group) {
    const Geometry& g = geometry();
    if (!claimed_) next_ = group.broadcast(claim(group));
    claimed_ = true;
    if (next_ >= call_.num_tokens) {
      finished_ = true;
      return Step::finished;
    }
    const std::int64_t wave = next_ / g.wave_tokens;
    const auto ring = static_cast<std::uint64_t>(g.wave_ring);
    const int slot =
        static_cast<int>((call_.epoch_state().wave_sequence[call_.rank] + static_cast<std::uint64_t>(wave)) % ring);
    if (wave != wave_seen_) {
      const std::uint64_t target =
          static_cast<std::uint64_t>(call_.num_planners()) * (static_cast<std::uint64_t>(wave) / ring + 1);
      const std::uint64_t placed = observe<Scope::device>(&call_.counters().placed[slot]);
      if (placed < target) return waiting(SignalKind::placed, call_.rank, target, placed);
      wave_seen_ = wave;
      block_seen_ = -1;
    }
    const std::int64_t token = next_ - call_.wave_begin(wave);
    const std::int64_t block = token / g.token_block;
    if (block != block_seen_) {
      const std::uint64_t* targets = call_.result_targets(slot, block);
      for (int peer = 0; peer < g.num_ranks; ++peer) {
        const std::uint64_t seen = observe<Scope::system>(
            call_.heap_at<std::uint64_t>(call_.heap.result_count(peer, slot, static_cast<int>(block))));
        if (seen < targets[peer]) return waiting(SignalKind::result_count, peer, targets[peer], seen);
      }
      block_seen_ = block;
    }
    group.sync();
    const std::int64_t next = claim(group);  // its answer comes while the token is combined
    combine_token(group, slot, token, next_);
    group.sync();
    if (group.leader()) join(&call_.counters().combined[slot], std::uint64_t{1});
    next_ = group.broadcast(next);
    return Step::advanced;
  }

  /// `token` counts within its wave, `call_token` within the call.
  FLASHMOE_HD void combine_token(const Group& group, int slot, std::int64_t token, std::int64_t call_token) {
    const Geometry& g = geometry();
    const std::int32_t* ids = call_.topk_ids + call_token * g.top_k;
    const float* weights = call_.topk_weights + call_token * g.top_k;
    const auto cell = [&](int index) { return call_.heap_at<const void>(call_.heap.result_cell(slot, token, index)); };
    if (call_.pre_reduced()) {
      combine_row(group, call_.math.dtype, g.hidden, g.num_ranks, call_.y_row(call_token),
                  [&](int peer) { return goes_to(g, ids, peer) ? cell(peer) : nullptr; },
                  [](int) { return 1.0f; });
    } else {
      combine_row(group, call_.math.dtype, g.hidden, g.top_k, call_.y_row(call_token),
                  [&](int choice) { return ids[choice] >= 0 ? cell(choice) : nullptr; },
                  [&](int choice) { return call_.math.weight_on_input ? 1.0f : weights[choice]; });
    }
  }

  // ---- lined form: next_ is a down tile of a token ----------------------------------------------------------------

  FLASHMOE_HD Step combine_lines(const Group& group) {
    const Geometry& g = geometry();
    const std::int64_t token = next_ / g.num_down_tiles();
    const int down_tile = static_cast<int>(next_ % g.num_down_tiles());
    if (token >= call_.num_tokens) {
      finished_ = true;
      return Step::finished;
    }
    const std::int32_t* ids = call_.topk_ids + token * g.top_k;
    const float* weights = call_.topk_weights + token * g.top_k;
    const int first_column = down_tile * g.tile.down_columns;
    const int columns = g.hidden - first_column < g.tile.down_columns ? g.hidden - first_column : g.tile.down_columns;
    const std::int64_t words = std::int64_t{columns} * g.element_bytes / 8;
    for (int choice = 0; choice < g.top_k; ++choice) {
      if (ids[choice] < 0) continue;
      const std::int64_t return_row = token * g.top_k + choice;
      const auto* lines = call_.heap_at<const Line>(call_.heap.lined_result(call_.epoch, return_row, down_tile));
      if (!try_load_lines(group, lines, words, line_tag(call_.generation, call_.epoch),
                          call_.lined_segment(index_, choice))) {
        return waiting(SignalKind::result_lines, destination_of(g, ids[choice]),
                       static_cast<std::uint64_t>(return_row), 0);
      }
    }
    group.sync();
    combine_row(group, call_.math.dtype, columns, g.top_k,
                call_.y_row(token) + std::int64_t{first_column} * g.element_bytes,
                [&](int choice) -> const void* {
                  return ids[choice] >= 0 ? call_.lined_segment(index_, choice) : nullptr;
                },
                [&](int choice) { return call_.math.weight_on_input ? 1.0f : weights[choice]; });
    group.sync();
    next_ += call_.roster.num_dispatchers;
    return Step::advanced;
  }

  const Call& call_;
  int index_;
  std::int64_t next_;
  bool claimed_ = false;          ///< counted: next_ is a token of this combiner's
  bool finished_ = false;
  std::int64_t wave_seen_ = -1;   ///< wave whose result targets are known
  std::int64_t block_seen_ = -1;  ///< its token block whose results are complete
  Wait wait_;
};

}  // namespace flashmoe
