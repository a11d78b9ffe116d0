// Combiner: sums the results of this rank's tokens once they have returned, each token in the order choice
// 0..top_k-1 (per_route) or rank 0..num_ranks-1 (pre_reduced), in fp32 (fp64 for fp64 layers), rounded once.
// Combiner i runs beside dispatcher i; helpers, which are processors without work, join late. Counted: each takes the next part
// of a token that none has taken, and helpers one where they are as many as parts. Lined: the parts are down tiles of a token;
// combiner i takes every num_dispatchers-th, but leaves the last ones to helpers, one each.
#pragma once

#include <cstdint>

#include "actors/call.hpp"
#include "actors/combine_lines.hpp"
#include "actors/combine_row.hpp"
#include "actors/route_plan.hpp"
#include "actors/signal.hpp"
#include "actors/step.hpp"

namespace flashmoe {

template <class Group>
class Combiner {
 public:
  /// Beside dispatcher `index`.
  FLASHMOE_HD Combiner(const Call& call, int index) : call_(call), next_(index) {}
  /// Number `index` of roster.num_helpers.
  FLASHMOE_HD static Combiner helper(const Call& call, int index) {
    Combiner combiner(call, index);
    combiner.helps_ = true;
    return combiner;
  }

  FLASHMOE_HD Step step(const Group& group) {
    if (finished_) return Step::finished;
    if (still_awaits(group)) return Step::idle;
    if (!call_.lined()) return combine_next(group);
    return combine_lines(group);
  }

  FLASHMOE_HD const Wait& wait() const { return wait_; }

 private:
  FLASHMOE_HD const Geometry& geometry() const { return call_.geometry(); }

  FLASHMOE_HD Step waiting(SignalKind signal, int peer, std::uint64_t expected, std::uint64_t seen) {
    wait_ = {signal, peer, expected, seen};
    return Step::idle;
  }

  /// Whether what the last step waited for has not come. Most steps end here: the less code they are, the less a GPU has to fetch
  /// again of what runs beside them (decision 28).
  FLASHMOE_HD bool still_awaits(const Group& group) {
    if (awaited_ == nullptr) return false;
    const std::uint64_t seen = group.broadcast(group.leader() ? peek<Scope::system>(awaited_) : 0);
    if (call_.lined() ? seen == wanted_ : seen >= wanted_) {
      awaited_ = nullptr;
      return false;
    }
    if (!call_.lined()) wait_.seen = seen;
    return true;
  }
  /// A counter that has to reach `wanted`, or, lined, a tag that has to be it.
  FLASHMOE_HD void await(const std::uint64_t* word, std::uint64_t wanted) {
    awaited_ = word;
    wanted_ = wanted;
  }

  // ---- counted form: next_ is a part of a token of the call ------------------------------------------------------

  /// The leader's next part, or one past the last.
  FLASHMOE_HD std::int64_t claim(const Group& group) const {
    if (!group.leader()) return 0;
    std::uint64_t* claims = &call_.counters().combine_claims;
    const bool leaves = !helps_ && call_.roster.num_helpers > 0 && static_cast<std::int64_t>(peek(claims)) >= claims_end();
    return leaves ? call_.num_tokens * parts_ : static_cast<std::int64_t>(draw(claims));
  }

  /// Where a combiner beside a dispatcher stops: the last wave, whose results come when tasks end, as helpers do, is left to these,
  /// and so are the last parts of a call, one each, as the call would wait for those that are slower. But not parts that a later
  /// wave waits for.
  FLASHMOE_HD std::int64_t claims_end() const {
    const std::int64_t waves = call_.own_waves();
    const auto parts_before = [&](std::int64_t wave) { return wave > 0 ? call_.wave_begin(wave) * parts_ : 0; };
    const std::int64_t awaited = parts_before(waves - geometry().wave_ring);  // in slots that waves after them use
    const std::int64_t early = parts_before(waves - 1);
    const std::int64_t others = call_.num_tokens * parts_ - call_.roster.num_helpers;
    const std::int64_t wanted = early < others ? early : others;
    return awaited > wanted ? awaited : wanted;
  }

  FLASHMOE_HD Step combine_next(const Group& group) {
    const Geometry& g = geometry();
    if (parts_ == 0) {
      parts_ = call_.combine_parts();
      takes_one_ = helps_ && call_.num_tokens * parts_ <= call_.roster.num_helpers;
      next_ = group.broadcast(claim(group));
    }
    if (next_ >= call_.num_tokens * parts_) {
      finished_ = true;
      return Step::finished;
    }
    // Of one call: 32 bits are enough, and a GPU divides them sooner.
    const auto number = static_cast<std::uint32_t>(next_);
    const auto parts = static_cast<std::uint32_t>(parts_);
    const std::int64_t call_token = number / parts;
    const std::int64_t wave = number / parts / static_cast<std::uint32_t>(g.wave_tokens);
    if (wave != wave_seen_) {
      slot_ = call_.ring_slot(call_.epoch_state().wave_sequence[call_.rank] + static_cast<std::uint64_t>(wave));
      const std::uint64_t target =
          static_cast<std::uint64_t>(call_.roster.num_dispatchers) * (static_cast<std::uint64_t>(wave) + 1);
      const std::uint64_t pushed = observe<Scope::device>(&call_.counters().pushed);
      if (pushed < target) {
        await(&call_.counters().pushed, target);
        return waiting(SignalKind::pushed, call_.rank, target, pushed);
      }
      wave_seen_ = wave;
      block_seen_ = -1;
    }
    const std::int64_t token = call_token - call_.wave_begin(wave);
    const bool complete = results_are_here(group, static_cast<int>(static_cast<std::uint32_t>(token) / g.token_block));
    group.sync();
    std::int64_t next = 0;
    if (complete && !takes_one_) next = claim(group);  // its answer comes while the part is combined
    if (complete || !rehearsed_) combine_part(group, token, call_token, complete ? static_cast<int>(number % parts) : parts_);
    rehearsed_ = true;
    if (!complete) return Step::idle;
    group.sync();
    if (group.leader() && wave + g.wave_ring < call_.own_waves()) {  // a later wave waits for the slot
      join(&call_.counters().combined[slot_], std::uint64_t{1});
    }
    next_ = group.broadcast(next);
    finished_ = takes_one_;
    return finished_ ? Step::finished : Step::advanced;
  }

  /// Whether all results of a token block of the wave have come; else wait_ says whose are missing.
  FLASHMOE_HD bool results_are_here(const Group& group, int block) {
    if (block == block_seen_) return true;
    const std::uint64_t* targets = call_.result_targets(slot_, block);
    FLASHMOE_ROLLED
    for (int base = 0; base < geometry().num_ranks; base += group.size()) {
      const int peer = base + group.index();
      std::uint64_t target = 0;
      std::uint64_t seen = 0;
      if (peer < geometry().num_ranks) {
        target = targets[peer];
        seen = observe<Scope::system>(call_.heap_at<std::uint64_t>(call_.heap.result_count(peer, slot_, block)));
      }
      const bool missing = seen < target;
      if (group.any(missing)) {
        waiting(SignalKind::result_count, group.first(missing, peer), group.first(missing, target), group.first(missing, seen));
        await(call_.heap_at<std::uint64_t>(call_.heap.result_count(wait_.peer, slot_, block)), wait_.expected);
        return false;
      }
    }
    block_seen_ = block;
    return true;
  }

  /// `token` counts within its wave, `call_token` within the call. Part parts_ has no columns.
  FLASHMOE_HD void combine_part(const Group& group, std::int64_t token, std::int64_t call_token, int part) {
    const Geometry& g = geometry();
    const int packet = kPartPacket / g.element_bytes;
    const int most = ((g.hidden + parts_ - 1) / parts_ + packet - 1) / packet * packet;
    const int first = part * most;
    const int columns = g.hidden - first < most ? g.hidden - first : most;  // below 1: none
    const std::int64_t at = std::int64_t{first} * g.element_bytes;
    const std::int32_t* ids = call_.topk_ids + call_token * g.top_k;
    const float* weights = call_.topk_weights + call_token * g.top_k;
    const auto cell = [&](int index) { return call_.heap_at<const char>(call_.heap.result_cell(slot_, token, index)) + at; };
    const bool reduced = call_.pre_reduced();
    combine_row(group, call_.math.dtype, columns, reduced ? g.num_ranks : g.top_k, call_.y_row(call_token) + at,
                [&](int index) -> const void* {
                  return (reduced ? goes_to(g, ids, index) : ids[index] >= 0) ? cell(index) : nullptr;
                },
                [&](int index) { return reduced || call_.math.weight_on_input ? 1.0f : weights[index]; });
  }
  static constexpr int kPartPacket = 16;  ///< bytes whose boundaries parts keep

  // ---- lined form: next_ is a down tile of a token --------------------------------------------------------------

  /// Of the parts of a call, the first that helpers take. Those who are there first take one each, which they wait for.
  FLASHMOE_HD std::int64_t helped_from() const {
    const std::int64_t all = call_.num_tokens * parts_;
    const std::int64_t first = all < call_.roster.num_dispatchers ? all : call_.roster.num_dispatchers;
    const std::int64_t others = all - call_.roster.num_helpers;
    return first > others ? first : others;
  }

  FLASHMOE_HD Step combine_lines(const Group& group) {
    const Geometry& g = geometry();
    if (parts_ == 0) {
      parts_ = g.num_down_tiles();
      end_ = helps_ ? call_.num_tokens * parts_ : helped_from();
      if (helps_) next_ += helped_from();
    }
    if (next_ >= end_) {
      finished_ = true;
      return Step::finished;
    }
    const auto next = static_cast<std::uint32_t>(next_);  // lined calls have few tokens
    const std::int64_t token = next / static_cast<std::uint32_t>(parts_);
    const int tile = static_cast<int>(next % static_cast<std::uint32_t>(parts_));
    const int first_column = tile * g.tile.down_columns;
    const int columns = g.hidden - first_column < g.tile.down_columns ? g.hidden - first_column : g.tile.down_columns;
    const std::int32_t* ids = call_.topk_ids + token * g.top_k;
    const float* weights = call_.topk_weights + token * g.top_k;
    // The first time there is nothing to sum, but a GPU fetches the code for it while there is time.
    const ResultLines lines{.num_cells = g.top_k,
                            .num_words = columns * g.element_bytes / 8,
                            .tag = line_tag(call_.generation, call_.epoch)};
    const int here = try_combine_lines(
        group, call_.math.dtype, lines, call_.y_row(token) + std::int64_t{first_column} * g.element_bytes,
        [&](int choice) {
          return call_.heap_at<const Line>(call_.heap.lined_result(call_.epoch, token * g.top_k + choice, tile));
        },
        [&](int choice) { return ids[choice] >= 0; },
        [&](int choice) { return call_.math.weight_on_input ? 1.0f : weights[choice]; });
    if (here < g.top_k) {
      const std::int64_t route = token * g.top_k + here;
      await(&call_.heap_at<const Line>(call_.heap.lined_result(call_.epoch, route, tile))->tag, lines.tag);
      return waiting(SignalKind::result_lines, destination_of(g, ids[here]), static_cast<std::uint64_t>(route), 0);
    }
    next_ = helps_ ? end_ : next_ + call_.roster.num_dispatchers;
    finished_ = next_ >= end_;
    return finished_ ? Step::finished : Step::advanced;
  }

  const Call& call_;
  std::int64_t next_ = 0;
  int parts_ = 0;                 ///< of a token; 0 before the first step
  std::int64_t end_ = 0;          ///< lined: of the parts for this combiner
  int slot_ = 0;                  ///< counted: ring slot of wave_seen_, or of the wave waited for
  bool helps_ = false;
  bool takes_one_ = false;        ///< counted: there are as many helpers as parts, and all of them come
  bool finished_ = false;
  std::int64_t wave_seen_ = -1;   ///< wave whose result targets are known
  int block_seen_ = -1;           ///< its token block whose results are complete
  bool rehearsed_ = false;        ///< counted: a sum was made that nobody needs, so that a GPU has fetched the code for it
  const std::uint64_t* awaited_ = nullptr;  ///< what is waited for, see await(); null: nothing, or it has come
  std::uint64_t wanted_ = 0;
  Wait wait_;
};

}  // namespace flashmoe
