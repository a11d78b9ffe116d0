// Dispatcher: announces the epoch, plans where this rank's tokens go, and pushes route lists and rows to the
// experts' ranks. In lined form it also lands the rows that arrive as lines.
//
// A rank runs `roster.num_dispatchers` of them. In counted form the first few plan each wave together
// (count | place), then all push their share of it (lists, rows, signals); no wave is planned before the one before
// it is pushed. In lined form they need no step: ids go out first, and every receiver works the lists out for itself.
#pragma once

#include <cstdint>
#include <cstring>

#include "actors/call.hpp"
#include "actors/line_io.hpp"
#include "actors/route_plan.hpp"
#include "actors/signal.hpp"
#include "actors/step.hpp"

namespace flashmoe {

template <class Group, class Fabric>
class Dispatcher {
 public:
  FLASHMOE_HD Dispatcher(const Call& call, Fabric fabric, int index) : call_(call), fabric_(fabric), index_(index) {}

  FLASHMOE_HD Step step(const Group& group) {
    switch (phase_) {
      case Phase::announce: return announce(group);
      case Phase::gate: return pass_gate(group);
      case Phase::count: return count(group);
      case Phase::place: return place(group);
      case Phase::await_plan: return await_plan(group);
      case Phase::send_lists: return send_lists(group);
      case Phase::push_rows: return push_rows(group);
      case Phase::signal_rows: return signal_rows(group);
      case Phase::send_ids: return send_ids(group);
      case Phase::push_lines: return push_lines(group);
      case Phase::land_lines: return land_lines(group);
      case Phase::done: return Step::finished;
    }
    return Step::finished;
  }

  FLASHMOE_HD const Wait& wait() const { return wait_; }

 private:
  enum class Phase : std::uint8_t {
    announce,
    gate, count, place, await_plan, send_lists, push_rows, signal_rows,  // counted
    send_ids, push_lines, land_lines,                                    // lined
    done,
  };

  FLASHMOE_HD const Geometry& geometry() const { return call_.geometry(); }
  FLASHMOE_HD std::uint64_t wave_number() const { return static_cast<std::uint64_t>(wave_); }
  FLASHMOE_HD std::uint64_t ring() const { return static_cast<std::uint64_t>(geometry().wave_ring); }
  FLASHMOE_HD int peer_at(int offset) const { return (call_.rank + offset) % geometry().num_ranks; }
  FLASHMOE_HD const std::int32_t* wave_ids() const {
    return call_.topk_ids + call_.wave_begin(wave_) * geometry().top_k;
  }
  FLASHMOE_HD const float* wave_weights() const {
    return call_.plan.list_weights ? call_.topk_weights + call_.wave_begin(wave_) * geometry().top_k : nullptr;
  }

  FLASHMOE_HD Step waiting(SignalKind signal, int peer, std::uint64_t expected, std::uint64_t seen) {
    wait_ = {signal, peer, expected, seen};
    return Step::idle;
  }

  /// A header to every rank: what this rank brings to the epoch.
  FLASHMOE_HD Step announce(const Group& group) {
    if (index_ == 0) {
      const std::uint64_t header[kHeaderWords] = {call_.epoch, call_.layer_id, call_.plan_hash,
                                                  static_cast<std::uint64_t>(call_.num_tokens),
                                                  static_cast<std::uint64_t>(call_.own_waves()), call_.generation};
      for (int offset = 1; offset < geometry().num_ranks; ++offset) {
        fabric_.put_lines(group, peer_at(offset), call_.heap.header(call_.rank, call_.epoch), header, kHeaderWords,
                          line_tag(call_.generation, call_.epoch));
      }
    }
    if (call_.lined()) {
      phase_ = Phase::send_ids;
    } else {
      sequence_ = call_.epoch_state().wave_sequence[call_.rank];
      enter_wave();
    }
    return Step::advanced;
  }

  /// To the gate of wave_, whose sequence is known.
  FLASHMOE_HD void enter_wave() {
    ring_slot_ = static_cast<int>(sequence_ % ring());
    planners_joined_ = static_cast<std::uint64_t>(call_.num_planners()) * (wave_number() / ring() + 1);
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
    if (index_ >= call_.num_planners()) {
      phase_ = Phase::await_plan;
      return Step::advanced;
    }
    const std::uint64_t retired_before = sequence_ / ring();
    for (int base = 0; base < geometry().num_ranks; base += group.size()) {
      const int peer = base + group.index();
      const std::uint64_t seen =
          peer < geometry().num_ranks
              ? observe<Scope::system>(call_.heap_at<std::uint64_t>(call_.heap.consumed(peer, ring_slot_)))
              : retired_before;
      if (group.any(seen < retired_before)) {
        return waiting(SignalKind::consumed, group.first(seen < retired_before, peer), retired_before,
                       group.first(seen < retired_before, seen));
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
    const std::int64_t tokens = call_.wave_size(wave_);
    chunk_ = chunk_of(tokens, call_.num_planners(), index_);
    num_chunks_ = static_cast<int>((tokens - 1) / chunk_tokens(tokens, call_.num_planners())) + 1;
    phase_ = Phase::count;
    return Step::advanced;
  }

  FLASHMOE_HD Step count(const Group& group) {
    if (chunk_.size() == 0) {  // of a small wave: nothing to tell the others
      if (group.leader()) {
        join(&call_.counters().planned[ring_slot_], std::uint64_t{1});
        join(&call_.counters().placed[ring_slot_], std::uint64_t{1});
      }
      phase_ = Phase::await_plan;
      return Step::advanced;
    }
    const std::int64_t wrong = find_wrong_id(group, geometry(), wave_ids(), chunk_);
    if (wrong >= 0) return fail_wrong_id(wrong);
    count_chunk(group, geometry(), wave_ids(), chunk_, call_.rank, call_.chunk_counts(index_),
                [this](std::int64_t token) { return call_.slot_map(token); });
    if (has_sets()) {
      const std::uint32_t* counts = call_.chunk_counts(index_);
      std::uint32_t* sums = call_.set_counts(index_ / kChunkSet);
      for (int key = group.index(); key < geometry().num_ranks + geometry().num_experts(); key += group.size()) {
        if (counts[key] > 0) tally(&sums[key], counts[key]);
      }
    }
    group.sync();
    if (group.leader()) join(&call_.counters().planned[ring_slot_], std::uint64_t{1});
    raise_result_targets(group);  // while others count: its readers wait for `placed`
    phase_ = Phase::place;
    return Step::advanced;
  }

  /// Whether chunks are counted by sets, too.
  FLASHMOE_HD bool has_sets() const { return num_chunks_ > kChunkSet; }

  /// Adds to the result targets the cells that every rank will return for each token block of the chunk.
  FLASHMOE_HD void raise_result_targets(const Group& group) {
    const Geometry& g = geometry();
    const std::int32_t* ids = wave_ids();
    std::int64_t end = 0;
    for (std::int64_t begin = chunk_.begin; begin < chunk_.end; begin = end) {
      const std::int64_t block = begin / g.token_block;
      std::uint64_t* targets = call_.result_targets(ring_slot_, block);
      end = (block + 1) * g.token_block < chunk_.end ? (block + 1) * g.token_block : chunk_.end;
      for (int peer = 0; peer < g.num_ranks; ++peer) {
        std::uint32_t cells = 0;
        for (std::int64_t token = begin + group.index(); token < end; token += group.size()) {
          const std::uint32_t routes = routes_to(g, ids + token * g.top_k, peer);
          cells += call_.pre_reduced() ? (routes > 0 ? 1u : 0u) : routes;
        }
        const std::uint32_t total = group.scan(cells).total;
        if (group.leader() && total > 0) tally(&targets[peer], std::uint64_t{total});  // chunks may share the block
      }
    }
  }

  /// With all chunks counted, every planner knows where its routes lie in every image.
  FLASHMOE_HD Step place(const Group& group) {
    const Geometry& g = geometry();
    const std::uint64_t planned = observe<Scope::device>(&call_.counters().planned[ring_slot_]);
    if (planned < planners_joined_) return waiting(SignalKind::planned, call_.rank, planners_joined_, planned);
    group.sync();

    std::uint32_t* entries = call_.chunk_cursors(index_);
    std::uint32_t* cursors = entries + g.num_ranks;
    for (int destination = 0; destination < g.num_ranks; ++destination) {
      const std::uint32_t total = set_cursors(group, destination, cursors);
      if (group.leader()) entries[destination] = total;
    }
    group.sync();
    rebase_slots(group);
    place_routes(
        group, g, {.ids = wave_ids(), .weights = wave_weights(), .tokens = chunk_}, cursors,
        [this](int destination) { return call_.own_image(destination, ring_slot_); },
        [entries](int destination) { return entries[destination]; },
        [this](std::int32_t token, int destination) {
          return destination == call_.rank ? static_cast<std::uint32_t>(token) : call_.slot_map(token)[destination];
        });
    group.sync();
    if (group.leader()) join(&call_.counters().placed[ring_slot_], std::uint64_t{1});
    phase_ = Phase::await_plan;
    return Step::advanced;
  }

  /// Sums of one key over the chunks before this planner's, and over all of them.
  struct Counted {
    std::uint32_t before = 0;
    std::uint32_t all = 0;
  };
  FLASHMOE_HD Counted counted(int key) const {
    constexpr int kMostSets = num_chunk_sets(kMostPlanners);
    const int own_set = index_ / kChunkSet;
    const int first = own_set * kChunkSet;
    const int num_sets = has_sets() ? num_chunk_sets(num_chunks_) : 0;
    const int keys = geometry().num_ranks + geometry().num_experts();
    const std::uint32_t* chunks_of_key = call_.chunk_counts(first) + key;
    const std::uint32_t* sets_of_key = call_.set_counts(0) + key;
    std::uint32_t counts[kChunkSet];  // all loads are in flight at once
    std::uint32_t sets[kMostSets];
    FLASHMOE_UNROLL
    for (int i = 0; i < kChunkSet; ++i) counts[i] = first + i < num_chunks_ ? chunks_of_key[i * keys] : 0;
    FLASHMOE_UNROLL
    for (int i = 0; i < kMostSets; ++i) sets[i] = i < num_sets ? sets_of_key[i * keys] : 0;
    Counted sums;
    FLASHMOE_UNROLL
    for (int i = 0; i < kChunkSet; ++i) {
      if (num_sets == 0) sums.all += counts[i];
      if (first + i < index_) sums.before += counts[i];
    }
    FLASHMOE_UNROLL
    for (int i = 0; i < kMostSets; ++i) {
      sums.all += sets[i];
      if (i < own_set) sums.before += sets[i];
    }
    return sums;
  }

  /// The same of one key for the whole group, its threads side by side over the chunks.
  FLASHMOE_HD Counted counted_together(const Group& group, int key) const {
    Counted sums;
    for (int base = 0; base < num_chunks_; base += group.size()) {
      const int chunk = base + group.index();
      const std::uint32_t count = chunk < num_chunks_ ? call_.chunk_counts(chunk)[key] : 0;
      sums.all += group.scan(count).total;
      sums.before += group.scan(chunk < index_ ? count : 0).total;
    }
    return sums;
  }

  /// Sets this planner's first entry of every expert of `destination`; returns the image's entries. One planner an image
  /// writes its head, too.
  FLASHMOE_HD std::uint32_t set_cursors(const Group& group, int destination, std::uint32_t* cursors) {
    const Geometry& g = geometry();
    const bool writes_head = destination % num_chunks_ == index_;
    const RouteImage image = call_.own_image(destination, ring_slot_);
    std::uint32_t total = 0;
    FLASHMOE_ROLLED
    for (int base = 0; base < g.num_local_experts; base += group.size()) {
      const int local_expert = base + group.index();
      const int expert = destination * g.num_local_experts + local_expert;
      const bool valid = local_expert < g.num_local_experts;
      const Counted routes = valid ? counted(g.num_ranks + expert) : Counted{};
      const Scan scan = group.scan(routes.all);
      if (valid) cursors[expert] = total + scan.before + routes.before;
      if (valid && writes_head) image.counts()[local_expert] = routes.all;
      total += scan.total;
    }
    if (writes_head) {
      const std::uint32_t num_slots = destination == call_.rank ? static_cast<std::uint32_t>(call_.wave_size(wave_))
                                                                : counted_together(group, destination).all;
      if (group.leader()) finish_image_head(image, num_slots, total);
    }
    return total;
  }

  /// Turns chunk-relative slots into the wave's.
  FLASHMOE_HD void rebase_slots(const Group& group) {
    for (int offset = 1; offset < geometry().num_ranks; ++offset) {
      const int destination = peer_at(offset);
      const std::uint32_t first = counted_together(group, destination).before;
      for (std::int64_t token = chunk_.begin + group.index(); token < chunk_.end; token += group.size()) {
        call_.slot_map(token)[destination] += first;
      }
    }
    group.sync();
  }

  // ---- counted form: push --------------------------------------------------------------------------------------

  FLASHMOE_HD Step await_plan(const Group& group) {
    const std::uint64_t placed = observe<Scope::device>(&call_.counters().placed[ring_slot_]);
    if (placed < planners_joined_) return waiting(SignalKind::placed, call_.rank, planners_joined_, placed);
    group.sync();
    tokens_ = share_of(call_.wave_size(wave_), call_.roster.num_dispatchers, index_);
    for (int peer = group.index(); peer < geometry().num_ranks; peer += group.size()) {
      call_.pushed_rows(index_)[peer] = {0, 0};
    }
    if (has_sets() && index_ < num_chunk_sets(num_chunks_)) {  // all have read them; the next wave is counted after `pushed`
      for (int key = group.index(); key < geometry().num_ranks + geometry().num_experts(); key += group.size()) {
        call_.set_counts(index_)[key] = 0;
      }
    }
    group.sync();
    peer_offset_ = 1;
    phase_ = Phase::send_lists;
    return Step::advanced;
  }

  /// Lists go first, before bulk rows can queue in front of them: this dispatcher's share of every image's lines.
  FLASHMOE_HD Step send_lists(const Group& group) {
    if (peer_offset_ >= geometry().num_ranks) {
      phase_ = Phase::push_rows;
      return Step::advanced;
    }
    const int peer = peer_at(peer_offset_++);
    const RouteImage image = call_.own_image(peer, ring_slot_);
    const std::int64_t words =
        RouteImage::num_words(image.num_local_experts, image.num_entries(), call_.plan.list_weights);
    put_share(group, peer, call_.heap.list(call_.rank, ring_slot_), image.words, words,
              line_tag(call_.generation, sequence_));
    return Step::advanced;
  }

  /// This dispatcher's share of `words` as lines to one peer.
  FLASHMOE_HD void put_share(const Group& group, int peer, std::size_t offset, const std::uint64_t* words,
                             std::int64_t num_words, std::uint64_t tag) {
    const TokenRange lines = share_of(num_lines(num_words), call_.roster.num_dispatchers, index_);
    const std::int64_t first = lines.begin * Line::kDataWords;
    const std::int64_t end = lines.end * Line::kDataWords < num_words ? lines.end * Line::kDataWords : num_words;
    if (first >= end) return;
    fabric_.put_lines(group, peer, offset + static_cast<std::size_t>(lines.begin) * sizeof(Line), words + first,
                      end - first, tag);
  }

  /// One token to every other rank that has one of its experts.
  FLASHMOE_HD Step push_rows(const Group& group) {
    const Geometry& g = geometry();
    if (tokens_.size() == 0) {
      group.sync();
      peer_offset_ = 1;
      phase_ = Phase::signal_rows;
      return Step::advanced;
    }
    const std::int64_t token = tokens_.begin++;
    for (int offset = 1; offset < g.num_ranks; ++offset) {
      const int peer = peer_at(offset);
      if (!goes_to(g, wave_ids() + token * g.top_k, peer)) continue;
      const std::uint32_t slot = call_.slot_map(token)[peer];
      fabric_.put_row(group, peer, call_.heap.token_row(call_.rank, ring_slot_, slot),
                      call_.x_row(call_.wave_begin(wave_) + token), g.row_bytes());
      if (group.leader()) {
        PushedRows& rows = call_.pushed_rows(index_)[peer];
        if (rows.count++ == 0) rows.first = slot;
      }
    }
    return Step::advanced;
  }

  /// Tells every receiver how many rows of each of its slot blocks this dispatcher has pushed.
  FLASHMOE_HD Step signal_rows(const Group& group) {
    const Geometry& g = geometry();
    if (peer_offset_ >= g.num_ranks) {
      group.sync();
      if (group.leader()) join(&call_.counters().pushed, std::uint64_t{1});
      ++wave_;
      ++sequence_;
      enter_wave();
      return Step::advanced;
    }
    const int peer = peer_at(peer_offset_++);
    const PushedRows rows = call_.pushed_rows(index_)[peer];
    const std::uint32_t end = rows.first + rows.count;
    const std::uint32_t block_slots = static_cast<std::uint32_t>(g.slot_block);
    for (std::uint32_t block = rows.first / block_slots + static_cast<std::uint32_t>(group.index());
         block * block_slots < end; block += static_cast<std::uint32_t>(group.size())) {
      const std::uint32_t low = block * block_slots > rows.first ? block * block_slots : rows.first;
      const std::uint32_t high = (block + 1) * block_slots < end ? (block + 1) * block_slots : end;
      if (low < high) {
        fabric_.signal(peer, call_.heap.arrival(call_.rank, ring_slot_, static_cast<int>(block)), high - low);
      }
    }
    return Step::advanced;
  }

  // ---- lined form ----------------------------------------------------------------------------------------------

  /// This dispatcher's share of the ids (and weights), packed two a word, to every rank.
  FLASHMOE_HD Step send_ids(const Group& group) {
    const Geometry& g = geometry();
    tokens_ = share_of(call_.num_tokens, call_.roster.num_dispatchers, index_);
    const std::int64_t wrong = find_wrong_id(group, g, call_.topk_ids, tokens_);
    if (wrong >= 0) return fail_wrong_id(wrong);
    if (g.num_ranks == 1) {
      phase_ = Phase::done;
      return Step::finished;
    }
    const std::int64_t routes = call_.num_tokens * g.top_k;
    const std::int64_t id_words = lined_id_words(g, call_.num_tokens, false);
    const std::int64_t words = lined_id_words(g, call_.num_tokens, call_.plan.list_weights);
    const TokenRange lines = share_of(num_lines(words), call_.roster.num_dispatchers, index_);
    const std::int64_t end = lines.end * Line::kDataWords < words ? lines.end * Line::kDataWords : words;
    std::uint64_t* packed = call_.lined_ids(call_.rank);
    for (std::int64_t word = lines.begin * Line::kDataWords + group.index(); word < end; word += group.size()) {
      packed[word] = word < id_words ? pack_pair(call_.topk_ids, 2 * word, routes)
                                     : pack_pair(call_.topk_weights, 2 * (word - id_words), routes);
    }
    group.sync();
    for (int offset = 1; offset < g.num_ranks; ++offset) {
      put_share(group, peer_at(offset), call_.heap.lined_ids(call_.rank, call_.epoch), packed, words,
                line_tag(call_.generation, call_.epoch));
    }
    begin_lined_rows(group);
    return Step::advanced;
  }

  template <class T>
  FLASHMOE_HD static std::uint64_t pack_pair(const T* values, std::int64_t first, std::int64_t count) {
    static_assert(sizeof(T) == 4);
    std::uint32_t low = 0;
    std::uint32_t high = 0;
    memcpy(&low, values + first, 4);
    if (first + 1 < count) memcpy(&high, values + first + 1, 4);
    return low | (std::uint64_t{high} << 32);
  }

  /// Next slot on every rank, counted over the tokens before this dispatcher's.
  FLASHMOE_HD void begin_lined_rows(const Group& group) {
    const Geometry& g = geometry();
    for (int offset = 1; offset < g.num_ranks; ++offset) {
      const int destination = peer_at(offset);
      std::uint32_t slots = 0;
      for (std::int64_t base = 0; base < tokens_.begin; base += group.size()) {
        const std::int64_t token = base + group.index();
        const bool goes = token < tokens_.begin && goes_to(g, call_.topk_ids + token * g.top_k, destination);
        slots += group.scan(goes ? 1u : 0u).total;
      }
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
    if (tokens_.size() == 0) {
      phase_ = Phase::land_lines;
      return Step::advanced;
    }
    const std::int64_t token = tokens_.begin++;
    for (int offset = 1; offset < g.num_ranks; ++offset) {
      const int peer = peer_at(offset);
      if (!goes_to(g, call_.topk_ids + token * g.top_k, peer)) continue;
      PushedRows& rows = call_.pushed_rows(index_)[peer];
      fabric_.put_row_lines(group, peer, call_.heap.lined_row(call_.rank, call_.epoch, rows.first + rows.count),
                            call_.x_row(token), g.row_words(), line_tag(call_.generation, call_.epoch));
      group.sync();
      if (group.leader()) ++rows.count;
      group.sync();
    }
    return Step::advanced;
  }

  /// Copies this dispatcher's share of every source's rows out of their lines as they come.
  FLASHMOE_HD Step land_lines(const Group& group) {
    const Geometry& g = geometry();
    std::uint32_t* cursors = call_.lined_cursors(index_);
    bool advanced = false;
    bool missing = false;
    for (int offset = 1; offset < g.num_ranks; ++offset) {
      const int source = peer_at(offset);
      if (observe<Scope::device>(call_.lined_ready(source)) == 0) {
        note_missing(missing, {SignalKind::landed, call_.rank, 1, 0});
        continue;
      }
      group.sync();
      const std::uint32_t slot = cursors[source];
      if (slot >= call_.image(call_.wave_slot(source, 0)).num_slots()) continue;
      const auto* lines = call_.heap_at<const Line>(call_.heap.lined_row(source, call_.epoch, slot));
      const std::uint64_t tag = line_tag(call_.generation, call_.epoch);
      if (!try_load_lines(group, lines, g.row_words(), tag, call_.lined_row(source, slot))) {
        note_missing(missing, {SignalKind::row_lines, source, slot, 0});
        continue;
      }
      group.sync();
      if (group.leader()) {
        cursors[source] = slot + static_cast<std::uint32_t>(call_.roster.num_dispatchers);
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

  FLASHMOE_HD Step fail_wrong_id(std::int64_t route) {
    const std::int64_t flat = call_.wave_begin(wave_) * geometry().top_k + route;
    wait_ = {SignalKind::wrong_id, call_.rank, static_cast<std::uint64_t>(flat),
             static_cast<std::uint64_t>(static_cast<std::int64_t>(call_.topk_ids[flat]))};
    return Step::failed;
  }

  const Call& call_;
  Fabric fabric_;
  int index_;
  Phase phase_ = Phase::announce;
  std::int64_t wave_ = 0;
  std::uint64_t sequence_ = 0;         ///< of the wave (counted)
  int ring_slot_ = 0;                  ///< where it lies
  std::uint64_t planners_joined_ = 0;  ///< what the planners' counters of the slot read when all have joined for it
  TokenRange chunk_;   ///< planned here, of the wave
  int num_chunks_ = 1;  ///< of the wave that are not empty
  TokenRange tokens_;  ///< left to push here, of the wave
  int peer_offset_ = 0;
  Wait wait_;
};

}  // namespace flashmoe
