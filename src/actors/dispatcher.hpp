// Dispatcher: announces the epoch, plans where this rank's tokens go, and pushes route lists and rows to the
// experts' ranks.
//
// A rank runs `roster.num_dispatchers` of them. In counted form the first few plan each wave together
// (count | place), and all push their share of it (rows once it is counted, lists once it is placed, signals); no wave is
// planned before the one before it is pushed. Chunks of the first wave other threads of an engine may plan for them (PlanState).
// Of few tokens (Call::listed_from_ids) dispatchers send ids in place of lists, and none waits for another. Lined form:
// lined_dispatcher.hpp.
#pragma once

#include <cstdint>

#include "actors/call.hpp"
#include "actors/chunk_planner.hpp"
#include "actors/id_lines.hpp"
#include "actors/lined_dispatcher.hpp"
#include "actors/route_plan.hpp"
#include "actors/signal.hpp"
#include "actors/step.hpp"

namespace flashmoe {

/// Of a planner's chunk of the first wave, which other threads of an engine may count in the dispatcher's place, and then place;
/// left: they will not.
enum class PlanState : std::uint8_t { awaited, counted, left };

template <class Group, class Fabric>
class Dispatcher {
 public:
  FLASHMOE_HD Dispatcher(const Call& call, Fabric fabric, int index)
      : call_(call), fabric_(fabric), index_(index), lined_(call, fabric, index) {}

  FLASHMOE_HD Step step(const Group& group) {
    switch (phase_) {
      case Phase::announce: return announce(group);
      case Phase::gate: return pass_gate(group);
      case Phase::count: return count(group);
      case Phase::place: return place(group);
      case Phase::send_ids: return send_ids(group);
      case Phase::await_counts: return await_counts(group);
      case Phase::push_rows: return push_rows(group);
      case Phase::signal_rows: return signal_rows(group);
      case Phase::await_plan: return await_plan(group);
      case Phase::send_lists: return send_lists(group);
      case Phase::end_wave: return end_wave(group);
      case Phase::check_ids: return check_ids(group);
      case Phase::lined: return lined_.step(group);
      case Phase::done: return Step::finished;
    }
    return Step::finished;
  }

  FLASHMOE_HD const Wait& wait() const { return phase_ == Phase::lined ? lined_.wait() : wait_; }

  /// Whether it has done what the first tasks of any rank wait for: its rows of the first wave are on their way, or there are none,
  /// and lined ones have landed.
  FLASHMOE_HD bool first_rows_done() const {
    return phase_ == Phase::lined ? lined_.done() : wave_ > 0 || phase_ == Phase::check_ids || phase_ == Phase::done;
  }

 private:
  enum class Phase : std::uint8_t {
    announce,
    gate, count, place, send_ids, await_counts, push_rows, signal_rows, await_plan, send_lists, end_wave,  // counted
    check_ids,  // listed from ids
    lined,
    done,
  };

  FLASHMOE_HD const Geometry& geometry() const { return call_.geometry(); }
  FLASHMOE_HD std::uint64_t wave_number() const { return static_cast<std::uint64_t>(wave_); }
  FLASHMOE_HD std::uint64_t ring() const { return static_cast<std::uint64_t>(geometry().wave_ring); }
  FLASHMOE_HD int num_peers() const { return geometry().num_ranks - 1; }

  FLASHMOE_HD Step waiting(SignalKind signal, int peer, std::uint64_t expected, std::uint64_t seen) {
    wait_ = {signal, peer, expected, seen};
    return Step::idle;
  }

  /// A header to every rank: what this rank brings to the epoch. By the last dispatcher: the first ones have to plan.
  FLASHMOE_HD Step announce(const Group& group) {
    if (index_ == call_.roster.num_dispatchers - 1) {
      const std::uint64_t header[kHeaderWords] = {call_.epoch, call_.layer_id, call_.plan_hash,
                                                  static_cast<std::uint64_t>(call_.num_tokens),
                                                  static_cast<std::uint64_t>(call_.own_waves()), call_.generation};
      FLASHMOE_ROLLED
      for (int offset = 1; offset < geometry().num_ranks; ++offset) {
        fabric_.put_lines(group, call_.peer_at(offset), call_.heap.header(call_.rank, call_.epoch), header, kHeaderWords,
                          line_tag(call_.generation, call_.epoch));
      }
    }
    if (call_.lined()) {
      phase_ = Phase::lined;
    } else {
      sequence_ = call_.epoch_state().wave_sequence[call_.rank];
      sends_ids_ = call_.listed_from_ids(call_.num_tokens);
      enter_wave();
      if (sends_ids_) skip_what_others_do(group);
    }
    return Step::advanced;
  }

  /// Of a call listed from ids a rank that is alone has nothing to send, and other warps may have sent all: see
  /// cuda/hopper/early_push.cuh.
  FLASHMOE_HD void skip_what_others_do(const Group& group) {
    tokens_ = share_of(call_.num_tokens, call_.roster.num_dispatchers, index_);
    if (num_peers() == 0) {
      phase_ = Phase::check_ids;
    } else if constexpr (kShares) {
      if (group.pushed_early()) phase_ = Phase::check_ids;
    }
  }

  /// To the gate of wave_, whose sequence is known.
  FLASHMOE_HD void enter_wave() {
    ring_slot_ = call_.ring_slot(sequence_);
    const auto uses_before = static_cast<std::uint32_t>(wave_) / static_cast<std::uint32_t>(ring());  // of the slot
    planners_joined_ = static_cast<std::uint64_t>(call_.num_planners()) * (uses_before + 1);
    phase_ = Phase::gate;
  }

  // ---- counted form: plan --------------------------------------------------------------------------------------

  /// The ring slot is free when every receiver has retired, and this rank combined, the wave that used it before;
  /// the planning scratch, when all dispatchers have pushed the wave before this one.
  FLASHMOE_HD Step pass_gate(const Group& group) {
    if (wave_ == call_.own_waves()) {
      phase_ = Phase::done;
      return Step::finished;
    }
    if (!sends_ids_) {
      cut_ = cut_wave(call_.wave_size(wave_), call_.num_planners());
      if (index_ >= call_.num_planners()) return prepare_push(Phase::await_counts);
    }
    FLASHMOE_ROLLED
    for (int base = 0; base < geometry().num_ranks; base += group.size()) {
      const int peer = base + group.index();
      std::uint64_t seen = 0;
      bool retired = true;
      if (peer < geometry().num_ranks) {
        seen = observe<Scope::system>(call_.heap_at<std::uint64_t>(call_.heap.consumed(peer, ring_slot_)));
        retired = call_.has_retired(seen, sequence_);
      }
      if (group.any(!retired)) {
        return waiting(SignalKind::consumed, group.first(!retired, peer), sequence_ / ring(), group.first(!retired, seen));
      }
    }
    if (wave_ > 0) {
      const std::uint64_t combined_before = wave_number() / ring() * static_cast<std::uint64_t>(geometry().wave_tokens) *
                                            static_cast<std::uint64_t>(call_.combine_parts());
      const std::uint64_t combined = observe<Scope::device>(&call_.counters().combined[ring_slot_]);
      if (combined < combined_before) return waiting(SignalKind::combined, call_.rank, combined_before, combined);
      const std::uint64_t pushed_before =
          wave_number() * static_cast<std::uint64_t>(call_.roster.num_dispatchers);
      const std::uint64_t pushed = observe<Scope::device>(&call_.counters().pushed);
      if (pushed < pushed_before) return waiting(SignalKind::pushed, call_.rank, pushed_before, pushed);
    }
    group.sync();
    phase_ = sends_ids_ ? Phase::send_ids : Phase::count;
    return Step::advanced;
  }

  FLASHMOE_HD ChunkPlanner<Group> planner_of(int chunk) const { return {call_, wave_, ring_slot_, cut_, chunk}; }
  FLASHMOE_HD ChunkPlanner<Group> planner() const { return planner_of(index_); }

  FLASHMOE_HD Step count(const Group& group) {
    const ChunkPlanner<Group> planner = this->planner();
    if (planner.empty()) {  // nothing to tell the others
      if (group.leader()) {
        join(&call_.counters().planned[ring_slot_], std::uint64_t{1});
        join(&call_.counters().placed[ring_slot_], std::uint64_t{1});
      }
      return prepare_push(Phase::await_counts);
    }
    bool counted = false;
    if constexpr (kHasHelp) {
      const PlanState state = wave_ == 0 ? group.plan_state() : PlanState::left;
      if (state == PlanState::awaited) return waiting(SignalKind::planned, call_.rank, planners_joined_, 0);
      counted = others_place_ = state == PlanState::counted;
    }
    if (!counted && !planner.count(group)) return fail_wrong_id(planner.find_wrong_route(group));
    if (group.leader()) join(&call_.counters().planned[ring_slot_], std::uint64_t{1});
    phase_ = Phase::place;
    return Step::advanced;
  }

  /// Whether other threads of the engine plan chunks of the first wave: see cuda/hopper/early_plan.cuh. They need not pass the gate:
  /// only the dispatcher, which has, tells others that its chunk is counted.
  static constexpr bool kHasHelp = requires(const Group& group) { group.plan_state(); };

  /// With all chunks counted, every planner knows where its routes lie in every image.
  FLASHMOE_HD Step place(const Group& group) {
    const std::uint64_t planned = observe<Scope::device>(&call_.counters().planned[ring_slot_]);
    if (planned < planners_joined_) return waiting(SignalKind::planned, call_.rank, planners_joined_, planned);
    group.sync();
    if constexpr (kHasHelp) {
      if (others_place_ && group.leaves_placing()) return prepare_push(Phase::push_rows);
      others_place_ = false;
    }
    planner().place(group);
    if (group.leader()) join(&call_.counters().placed[ring_slot_], std::uint64_t{1});
    return prepare_push(Phase::push_rows);
  }

  // ---- counted form: push --------------------------------------------------------------------------------------

  FLASHMOE_HD Step prepare_push(Phase next) {
    tokens_ = share_of(call_.wave_size(wave_), call_.roster.num_dispatchers, index_);
    next_token_ = tokens_.begin;
    peer_offset_ = 1;
    rows_ = {0, 0};
    part_ = index_;
    sends_lists_ = sends_ids_;
    looks_for_plan_ = !sends_ids_;
    phase_ = next;
    return Step::advanced;
  }

  /// In place of a plan.
  FLASHMOE_HD Step send_ids(const Group& group) {
    const std::int64_t wrong = find_wrong_id(group, geometry(), call_.topk_ids, tokens_);
    if (wrong >= 0) return fail_wrong_id(wrong);
    flashmoe::send_ids(group, fabric_, call_, index_, sequence_);
    return prepare_push(Phase::push_rows);
  }

  /// With all chunks counted, slots are known: planners have passed the gate, and rows need not wait for the lists.
  FLASHMOE_HD Step await_counts(const Group& group) {
    const std::uint64_t planned = observe<Scope::device>(&call_.counters().planned[ring_slot_]);
    if (planned < planners_joined_) return waiting(SignalKind::planned, call_.rank, planners_joined_, planned);
    group.sync();
    phase_ = Phase::push_rows;
    return Step::advanced;
  }

  /// This dispatcher's tokens to every other rank that has one of their experts, rank by rank: of a group's width of tokens
  /// each thread looks up one. Slots of a rank follow one another. Once the lists are placed they go before any more rows that
  /// this warp pushes, which they would have to queue behind.
  FLASHMOE_HD Step push_rows(const Group& group) {
    if (looks_for_plan_ && plan_is_placed(group)) return Step::advanced;
    const bool placed = !sends_lists_ && peek(&call_.counters().placed[ring_slot_]) >= planners_joined_;  // beside the row
    if (peer_offset_ < geometry().num_ranks) push_some(group, call_.peer_at(peer_offset_));
    looks_for_plan_ = group.any(placed);
    if (peer_offset_ < geometry().num_ranks) return Step::advanced;
    group.sync();
    if constexpr (kShares) group.end_sharing();
    phase_ = Phase::signal_rows;
    return Step::advanced;
  }

  /// One of its tokens to the rank at peer_offset_, or the end of those that it looked up together.
  FLASHMOE_HD void push_some(const Group& group, int peer) {
    if (looked_up_.total == 0) look_up(group, peer);
    if (looked_up_.total > 0 && push_row(group, peer)) return;
    rows_.count += looked_up_.total;
    looked_up_.total = 0;
    next_token_ += group.size();
    if (next_token_ < tokens_.end) return;
    if (group.leader()) call_.pushed_rows(index_)[peer] = rows_;
    next_token_ = tokens_.begin;
    rows_ = {0, 0};
    ++peer_offset_;
  }

  /// Which of the next tokens go to `peer`, and the slot of its first.
  FLASHMOE_HD void look_up(const Group& group, int peer) {
    const Geometry& g = geometry();
    const auto token = static_cast<std::int32_t>(next_token_) + group.index();
    const bool exists = token < tokens_.end;
    // Counted from the chunk's first. Where the token does not go it means nothing, but comes together with the ids.
    const std::uint32_t slot = exists && !sends_ids_ ? call_.slot_map(token)[peer] : 0;
    const bool goes = exists && goes_to(g, call_.wave_ids(wave_) + std::int64_t{token} * g.top_k, peer);
    const Scan scan = group.number(goes);
    looked_up_ = {scan.total, goes, scan.before, 0};
    if (scan.total == 0) return;
    if (rows_.count == 0 && sends_ids_) {
      rows_.first = count_tokens_to(group, g, call_.topk_ids, tokens_.begin, peer);
    } else if (rows_.count == 0) {
      const std::int32_t first = group.first(goes && scan.before == 0, token);
      const int chunk = cut_.chunk_of(static_cast<std::uint32_t>(first));
      rows_.first =
          group.sum(planner_of(chunk).count_slots(group, peer).before) + group.first(goes && scan.before == 0, slot);
    }
    if constexpr (kShares) {
      group.offer(call_.wave_begin(wave_) + next_token_, goes, rows_.first + rows_.count, peer, ring_slot_);
    }
  }

  /// The next row of those; false when all are pushed.
  FLASHMOE_HD bool push_row(const Group& group, int peer) {
    if constexpr (kShares) {
      if (group.push_shared(call_, fabric_)) return true;
      group.await_shared();
      return false;
    } else {
      if (looked_up_.pushed == looked_up_.total) return false;
      const bool next = looked_up_.goes && looked_up_.before == looked_up_.pushed;  // this thread's token
      const std::int64_t token = next_token_ + group.first(next, group.index());
      fabric_.put_row(group, peer, call_.heap.token_row(call_.rank, ring_slot_, rows_.first + rows_.count + looked_up_.pushed),
                      call_.x_row(call_.wave_begin(wave_) + token), geometry().row_bytes());
      ++looked_up_.pushed;
      return true;
    }
  }

  /// Whether other warps push some of them, too: see cuda/hopper/shared_rows.cuh.
  static constexpr bool kShares = requires(const Group& group, const Call& call, const Fabric& fabric) {
    group.push_shared(call, fabric);
  };

  /// Tells every receiver how many rows of each of its slot blocks this dispatcher has pushed, side by side.
  FLASHMOE_HD Step signal_rows(const Group& group) {
    const auto block_slots = static_cast<std::uint32_t>(geometry().slot_block);
    const int most_blocks =
        static_cast<int>((static_cast<std::uint32_t>(tokens_.size()) + block_slots - 1) / block_slots) + 1;
    FLASHMOE_ROLLED
    for (int i = group.index(); i < num_peers() * most_blocks; i += group.size()) {
      const int peer = call_.peer_at(1 + i / most_blocks);
      const PushedRows rows = call_.pushed_rows(index_)[peer];
      const std::uint32_t end = rows.first + rows.count;
      const std::uint32_t block = rows.first / block_slots + static_cast<std::uint32_t>(i % most_blocks);
      const std::uint32_t low = block * block_slots > rows.first ? block * block_slots : rows.first;
      const std::uint32_t high = (block + 1) * block_slots < end ? (block + 1) * block_slots : end;
      if (low < high) {
        fabric_.signal(peer, call_.heap.arrival(call_.rank, ring_slot_, static_cast<int>(block)), high - low);
      }
    }
    phase_ = sends_lists_ ? Phase::end_wave : Phase::await_plan;
    return Step::advanced;
  }

  FLASHMOE_HD Step await_plan(const Group& group) { return plan_is_placed(group) ? Step::advanced : Step::idle; }

  /// Whether the images are complete, and their turn comes; else wait_ says so.
  FLASHMOE_HD bool plan_is_placed(const Group& group) {
    const std::uint64_t placed = observe<Scope::device>(&call_.counters().placed[ring_slot_]);
    if (placed < planners_joined_) {
      waiting(SignalKind::placed, call_.rank, planners_joined_, placed);
      return false;
    }
    group.sync();
    sends_lists_ = true;
    looks_for_plan_ = false;
    then_ = phase_ == Phase::await_plan ? Phase::end_wave : Phase::push_rows;
    phase_ = Phase::send_lists;
    return true;
  }

  /// Every dispatcher sends a part of one rank's list (of several, where ranks are more), so that it waits for few loads.
  FLASHMOE_HD Step send_lists(const Group& group) {
    const bool several = num_peers() > 0 && num_peers() < call_.roster.num_dispatchers;
    const int parts = several ? call_.roster.num_dispatchers / num_peers() : 1;  // of a list
    if (part_ < num_peers() * parts) {
      const int peer = call_.peer_at(1 + part_ / parts);
      const RouteImage image = call_.own_image(peer, ring_slot_);
      const std::int64_t words =
          RouteImage::num_words(image.num_local_experts, image.num_entries(), call_.plan.list_weights);
      put_share(group, fabric_, peer, call_.heap.list(call_.rank, ring_slot_),
                {.words = image.words,
                 .num_words = words,
                 .tag = line_tag(call_.generation, sequence_),
                 .lines = share_of(num_lines(words), parts, part_ % parts)});
    }
    part_ += call_.roster.num_dispatchers;
    if (part_ >= num_peers() * parts) phase_ = then_;
    return Step::advanced;
  }

  FLASHMOE_HD Step end_wave(const Group& group) {
    // Whoever reads them or counts the next wave waits for `pushed`.
    raise_result_targets(group, call_, wave_, ring_slot_, tokens_);
    if (!sends_ids_ && index_ < call_.num_planners()) planner().clear_set(group);
    group.sync();
    if (group.leader()) join(&call_.counters().pushed, std::uint64_t{1});
    ++wave_;
    ++sequence_;
    enter_wave();
    return Step::advanced;
  }

  /// All that is left of the only wave of such a call.
  FLASHMOE_HD Step check_ids(const Group& group) {
    const std::int64_t wrong = find_wrong_id(group, geometry(), call_.topk_ids, tokens_);
    if (wrong >= 0) return fail_wrong_id(wrong);
    raise_result_targets(group, call_, 0, ring_slot_, tokens_);
    group.sync();
    if (group.leader()) join(&call_.counters().pushed, std::uint64_t{1});
    ++wave_;
    phase_ = Phase::done;
    return Step::advanced;
  }

  /// `route`: of the wave.
  FLASHMOE_HD Step fail_wrong_id(std::int64_t route) {
    wait_ = wrong_id(call_, call_.wave_begin(wave_) * geometry().top_k + route);
    return Step::failed;
  }

  const Call& call_;
  Fabric fabric_;
  int index_;
  Phase phase_ = Phase::announce;
  std::int64_t wave_ = 0;
  std::uint64_t sequence_ = 0;         ///< of the wave (counted)
  int ring_slot_ = 0;                  ///< where it lies
  bool sends_ids_ = false;             ///< in place of lists; there is one wave at most
  std::uint64_t planners_joined_ = 0;  ///< what the planners' counters of the slot read when all have joined for it
  WaveCut cut_;                        ///< of the wave
  bool others_place_ = false;          ///< other threads have counted its chunk, and may place it
  int part_ = 0;                       ///< of the lists: the next to send here
  bool sends_lists_ = false;           ///< or has sent them, or ids in their place
  bool looks_for_plan_ = false;        ///< before the next row
  Phase then_ = Phase::done;           ///< after the lists
  TokenRange tokens_;                  ///< to push here, of the wave
  std::int64_t next_token_ = 0;        ///< of these, to the rank at peer_offset_
  int peer_offset_ = 0;
  PushedRows rows_;                    ///< pushed to that rank so far, not counting looked_up_
  struct {
    std::uint32_t total = 0;  ///< that go there
    // Where rows are not shared:
    bool goes = false;         ///< this thread's token
    std::uint32_t before = 0;  ///< tokens of lower threads that go
    std::uint32_t pushed = 0;
  } looked_up_;                        ///< of the next tokens, a thread each
  LinedDispatcher<Group, Fabric> lined_;
  Wait wait_;
};

}  // namespace flashmoe
