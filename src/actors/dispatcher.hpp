// Dispatcher: announces the epoch, plans where this rank's tokens go, and pushes route lists and rows to the
// experts' ranks. In lined form it also lands the rows that arrive as lines.
//
// A rank runs `roster.num_dispatchers` of them. In counted form each handles one chunk of every wave, in step with
// the others: count | place | send lists, then rows. In lined form they need no step: ids go out first, and every
// receiver works the lists out for itself.
#pragma once

#include <cstdint>

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
    announce, gate, count, place, send_lists, push_rows, signal_rows,  // counted
    send_ids, push_lines, land_lines,                                  // lined
    done,
  };

  FLASHMOE_HD const Geometry& geometry() const { return call_.geometry(); }
  FLASHMOE_HD std::uint64_t sequence() const { return call_.epoch_state().wave_sequence[call_.rank] + wave_; }
  FLASHMOE_HD int ring_slot() const { return static_cast<int>(sequence() % geometry().wave_ring); }
  /// Times all dispatchers must have joined a per-slot counter for the current wave.
  FLASHMOE_HD std::uint64_t joined_target() const {
    return static_cast<std::uint64_t>(call_.roster.num_dispatchers) * (wave_ / geometry().wave_ring + 1);
  }
  FLASHMOE_HD const std::int32_t* wave_ids() const {
    return call_.topk_ids + call_.wave_begin(wave_) * geometry().top_k;
  }
  FLASHMOE_HD const float* wave_weights() const {
    return call_.plan.list_weights ? call_.topk_weights + call_.wave_begin(wave_) * geometry().top_k : nullptr;
  }

  FLASHMOE_HD std::uint32_t* slots_of(std::int64_t token) const { return call_.slot_map(index_, token - chunk_.begin); }

  FLASHMOE_HD Step waiting(SignalKind signal, int peer, std::uint64_t expected, std::uint64_t seen) {
    wait_ = {signal, peer, expected, seen};
    return Step::idle;
  }

  /// A header to every rank: what this rank brings to the epoch.
  FLASHMOE_HD Step announce(const Group& group) {
    if (index_ == 0) {
      std::uint64_t header[kHeaderWords] = {call_.epoch, call_.layer_id, call_.plan_hash,
                                 static_cast<std::uint64_t>(call_.num_tokens),
                                 static_cast<std::uint64_t>(call_.own_waves()), call_.generation};
      for (int peer = 0; peer < geometry().num_ranks; ++peer) {
        if (peer == call_.rank) continue;
        fabric_.put_lines(group, peer, call_.heap.header(call_.rank, call_.epoch), header, kHeaderWords,
                          line_tag(call_.generation, call_.epoch));
      }
    }
    phase_ = call_.lined() ? Phase::send_ids : Phase::gate;
    return Step::advanced;
  }

  // ---- counted form --------------------------------------------------------------------------------------------

  /// The ring slot is free when every receiver has retired, and this rank combined, the wave that used it before.
  FLASHMOE_HD Step pass_gate(const Group& group) {
    if (wave_ == call_.own_waves()) {
      phase_ = Phase::done;
      return Step::finished;
    }
    const int slot = ring_slot();
    const std::uint64_t retired_before = sequence() / geometry().wave_ring;
    for (int peer = 0; peer < geometry().num_ranks; ++peer) {
      const std::uint64_t seen =
          observe<Scope::system>(call_.heap_at<std::uint64_t>(call_.heap.consumed(peer, slot)));
      if (seen < retired_before) return waiting(SignalKind::consumed, peer, retired_before, seen);
    }
    const std::uint64_t combined_before = wave_ / geometry().wave_ring * geometry().wave_tokens;
    const std::uint64_t combined = observe<Scope::device>(&call_.counters().combined[slot]);
    if (combined < combined_before) return waiting(SignalKind::combined, call_.rank, combined_before, combined);
    group.sync();
    chunk_ = chunk_of(geometry(), call_.wave_size(wave_), call_.roster.num_dispatchers, index_);
    phase_ = Phase::count;
    return Step::advanced;
  }

  FLASHMOE_HD Step count(const Group& group) {
    const std::int64_t wrong = find_wrong_id(group, geometry(), wave_ids(), chunk_);
    if (wrong >= 0) return fail_wrong_id(wrong);
    count_chunk(group, geometry(), wave_ids(), chunk_, call_.chunk_counts(index_),
                [this](std::int64_t token) { return slots_of(token); });
    count_expected_results(group);
    group.sync();
    if (group.leader()) join(&call_.counters().planned[ring_slot()], std::uint64_t{1});
    phase_ = Phase::place;
    return Step::advanced;
  }

  /// Result cells every rank will return for each token block of the chunk.
  FLASHMOE_HD void count_expected_results(const Group& group) {
    const Geometry& g = geometry();
    const std::int32_t* ids = wave_ids();
    for (std::int64_t begin = chunk_.begin; begin < chunk_.end; begin += g.token_block) {
      std::uint32_t* expected = call_.expected_results(ring_slot(), begin / g.token_block);
      const std::int64_t end = begin + g.token_block < chunk_.end ? begin + g.token_block : chunk_.end;
      for (int peer = 0; peer < g.num_ranks; ++peer) {
        std::uint32_t cells = 0;
        for (std::int64_t token = begin + group.index(); token < end; token += group.size()) {
          std::uint32_t routes = 0;
          for (int choice = 0; choice < g.top_k; ++choice) {
            routes += destination_of(g, ids[token * g.top_k + choice]) == peer ? 1u : 0u;
          }
          cells += call_.pre_reduced() ? (routes > 0 ? 1u : 0u) : routes;
        }
        const std::uint32_t total = group.scan(cells).total;
        if (group.leader()) expected[peer] = total;
      }
    }
  }

  /// With all chunks counted, every dispatcher knows where its routes lie in every image.
  FLASHMOE_HD Step place(const Group& group) {
    const Geometry& g = geometry();
    const std::uint64_t planned = observe<Scope::device>(&call_.counters().planned[ring_slot()]);
    if (planned < joined_target()) return waiting(SignalKind::planned, call_.rank, joined_target(), planned);
    group.sync();

    std::uint32_t* cursors = call_.chunk_cursors(index_);
    std::uint32_t* experts = cursors + g.num_ranks;
    for (int destination = 0; destination < g.num_ranks; ++destination) {
      const std::uint32_t entries = set_cursors(group, destination, experts);
      if (group.leader()) cursors[destination] = entries;
      if (index_ == 0) write_own_head(group, destination);
    }
    group.sync();
    rebase_slots(group);
    place_routes(
        group, g, {.ids = wave_ids(), .weights = wave_weights(), .tokens = chunk_}, experts,
        [this](int destination) { return call_.own_image(destination, ring_slot()); },
        [cursors](int destination) { return cursors[destination]; },
        [this](std::int64_t token, int destination) {
          return destination == call_.rank ? static_cast<std::uint32_t>(token) : slots_of(token)[destination];
        });
    group.sync();
    // From here on the other dispatchers may count their next chunk: keep what signal_rows needs of their counts.
    for (int peer = group.index(); peer < g.num_ranks; peer += group.size()) {
      cursors[peer] = counted_before(index_, peer);
    }
    group.sync();
    if (group.leader()) join(&call_.counters().placed[ring_slot()], std::uint64_t{1});
    peer_offset_ = 1;
    phase_ = Phase::send_lists;
    return Step::advanced;
  }

  /// Sum of one key over the chunks before `end_chunk`.
  FLASHMOE_HD std::uint32_t counted_before(int end_chunk, int key) const {
    std::uint32_t sum = 0;
    for (int chunk = 0; chunk < end_chunk; ++chunk) sum += call_.chunk_counts(chunk)[key];
    return sum;
  }

  /// Sets this dispatcher's first entry of every expert of `destination`; returns the image's entries.
  FLASHMOE_HD std::uint32_t set_cursors(const Group& group, int destination, std::uint32_t* experts) {
    const Geometry& g = geometry();
    std::uint32_t total = 0;
    for (int base = 0; base < g.num_local_experts; base += group.size()) {
      const int local_expert = base + group.index();
      const int expert = destination * g.num_local_experts + local_expert;
      const bool valid = local_expert < g.num_local_experts;
      const std::uint32_t count =
          valid ? counted_before(call_.roster.num_dispatchers, g.num_ranks + expert) : 0;
      const Scan scan = group.scan(count);
      if (valid) experts[expert] = total + scan.before + counted_before(index_, g.num_ranks + expert);
      total += scan.total;
    }
    return total;
  }

  FLASHMOE_HD void write_own_head(const Group& group, int destination) {
    const Geometry& g = geometry();
    const int all = call_.roster.num_dispatchers;
    const std::uint32_t num_slots = destination == call_.rank ? static_cast<std::uint32_t>(call_.wave_size(wave_))
                                                              : counted_before(all, destination);
    write_image_head(
        group, call_.own_image(destination, ring_slot()), num_slots,
        [&](int local_expert) {
          return counted_before(all, g.num_ranks + destination * g.num_local_experts + local_expert);
        },
        nullptr);
  }

  /// Turns chunk-relative slots into the wave's.
  FLASHMOE_HD void rebase_slots(const Group& group) {
    for (int destination = 0; destination < geometry().num_ranks; ++destination) {
      const std::uint32_t first = counted_before(index_, destination);
      for (std::int64_t token = chunk_.begin + group.index(); token < chunk_.end; token += group.size()) {
        slots_of(token)[destination] += first;
      }
    }
    group.sync();
  }

  /// Lists go first, before bulk rows can queue in front of them: this dispatcher's share of every image's lines.
  FLASHMOE_HD Step send_lists(const Group& group) {
    const std::uint64_t placed = observe<Scope::device>(&call_.counters().placed[ring_slot()]);
    if (placed < joined_target()) return waiting(SignalKind::placed, call_.rank, joined_target(), placed);
    group.sync();
    if (peer_offset_ == geometry().num_ranks) {
      token_ = chunk_.begin;
      phase_ = Phase::push_rows;
      return Step::advanced;
    }
    const int peer = (call_.rank + peer_offset_++) % geometry().num_ranks;
    const RouteImage image = call_.own_image(peer, ring_slot());
    const std::int64_t words =
        RouteImage::num_words(image.num_local_experts, image.num_entries(), call_.plan.list_weights);
    const std::int64_t lines = num_lines(words);
    const std::int64_t first = lines * index_ / call_.roster.num_dispatchers * Line::kDataWords;
    const std::int64_t end_line = lines * (index_ + 1) / call_.roster.num_dispatchers;
    const std::int64_t end = end_line == lines ? words : end_line * Line::kDataWords;
    if (first < end) {
      fabric_.put_lines(group, peer,
                        call_.heap.list(call_.rank, ring_slot()) + first / Line::kDataWords * sizeof(Line),
                        image.words + first, end - first, line_tag(call_.generation, sequence()));
    }
    return Step::advanced;
  }

  /// One token to every other rank that has one of its experts.
  FLASHMOE_HD Step push_rows(const Group& group) {
    const Geometry& g = geometry();
    if (token_ == chunk_.end) {
      peer_offset_ = 1;
      phase_ = Phase::signal_rows;
      return Step::advanced;
    }
    for (int offset = 1; offset < g.num_ranks; ++offset) {
      const int peer = (call_.rank + offset) % g.num_ranks;
      if (!goes_to(g, wave_ids() + token_ * g.top_k, peer)) continue;
      fabric_.put_row(group, peer, call_.heap.token_row(call_.rank, ring_slot(), slots_of(token_)[peer]),
                      call_.x_row(call_.wave_begin(wave_) + token_), g.row_bytes());
    }
    ++token_;
    return Step::advanced;
  }

  /// Tells every receiver how many rows of each of its slot blocks this dispatcher has pushed.
  FLASHMOE_HD Step signal_rows(const Group& group) {
    const Geometry& g = geometry();
    if (peer_offset_ == g.num_ranks) {
      ++wave_;
      phase_ = Phase::gate;
      return Step::advanced;
    }
    group.sync();
    const int peer = (call_.rank + peer_offset_++) % g.num_ranks;
    const std::uint32_t begin = call_.chunk_cursors(index_)[peer];
    const std::uint32_t end = begin + call_.chunk_counts(index_)[peer];
    const std::uint32_t block_slots = static_cast<std::uint32_t>(g.slot_block);
    for (std::uint32_t block = begin / block_slots + static_cast<std::uint32_t>(group.index());
         block * block_slots < end; block += static_cast<std::uint32_t>(group.size())) {
      const std::uint32_t low = block * block_slots > begin ? block * block_slots : begin;
      const std::uint32_t high = (block + 1) * block_slots < end ? (block + 1) * block_slots : end;
      if (low < high) {
        fabric_.signal(peer, call_.heap.arrival(call_.rank, ring_slot(), static_cast<int>(block)), high - low);
      }
    }
    return Step::advanced;
  }

  // ---- lined form ----------------------------------------------------------------------------------------------

  /// This dispatcher's share of the ids (and weights), packed two a word, to every rank.
  FLASHMOE_HD Step send_ids(const Group& group) {
    const Geometry& g = geometry();
    chunk_ = chunk_of(g, call_.num_tokens, call_.roster.num_dispatchers, index_);
    const std::int64_t wrong = find_wrong_id(group, g, call_.topk_ids, chunk_);
    if (wrong >= 0) return fail_wrong_id(wrong);
    const std::int64_t routes = call_.num_tokens * g.top_k;
    const std::int64_t id_words = lined_id_words(g, call_.num_tokens, false);
    const std::int64_t words = lined_id_words(g, call_.num_tokens, call_.plan.list_weights);
    const std::int64_t lines = num_lines(words);
    const std::int64_t first = lines * index_ / call_.roster.num_dispatchers * Line::kDataWords;
    const std::int64_t end_line = lines * (index_ + 1) / call_.roster.num_dispatchers;
    const std::int64_t end = end_line == lines ? words : end_line * Line::kDataWords;
    std::uint64_t* packed = call_.lined_ids(call_.rank);
    for (std::int64_t word = first + group.index(); word < end; word += group.size()) {
      packed[word] = word < id_words ? pack_pair(call_.topk_ids, 2 * word, routes)
                                     : pack_pair(call_.topk_weights, 2 * (word - id_words), routes);
    }
    group.sync();
    for (int offset = 1; first < end && offset < g.num_ranks; ++offset) {
      const int peer = (call_.rank + offset) % g.num_ranks;
      fabric_.put_lines(group, peer,
                        call_.heap.lined_ids(call_.rank, call_.epoch) + first / Line::kDataWords * sizeof(Line),
                        packed + first, end - first, line_tag(call_.generation, call_.epoch));
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

  /// Slots on every rank, counted over the tokens before the chunk.
  FLASHMOE_HD void begin_lined_rows(const Group& group) {
    const Geometry& g = geometry();
    std::uint32_t* slots = call_.chunk_counts(index_);
    for (int destination = group.index(); destination < g.num_ranks; destination += group.size()) {
      slots[destination] = 0;
      for (std::int64_t token = 0; token < chunk_.begin; ++token) {
        slots[destination] += goes_to(g, call_.topk_ids + token * g.top_k, destination) ? 1u : 0u;
      }
      call_.lined_cursors(index_)[destination] = static_cast<std::uint32_t>(index_);
    }
    group.sync();
    token_ = chunk_.begin;
    phase_ = Phase::push_lines;
  }

  FLASHMOE_HD Step push_lines(const Group& group) {
    const Geometry& g = geometry();
    if (token_ == chunk_.end) {
      phase_ = Phase::land_lines;
      return Step::advanced;
    }
    std::uint32_t* slots = call_.chunk_counts(index_);
    for (int offset = 1; offset < g.num_ranks; ++offset) {
      const int peer = (call_.rank + offset) % g.num_ranks;
      if (!goes_to(g, call_.topk_ids + token_ * g.top_k, peer)) continue;
      const std::uint32_t slot = slots[peer];
      fabric_.put_row_lines(group, peer, call_.heap.lined_row(call_.rank, call_.epoch, slot), call_.x_row(token_),
                            g.row_words(), line_tag(call_.generation, call_.epoch));
      group.sync();
      if (group.leader()) slots[peer] = slot + 1;
      group.sync();
    }
    ++token_;
    return Step::advanced;
  }

  /// Copies this dispatcher's share of every source's rows out of their lines as they come.
  FLASHMOE_HD Step land_lines(const Group& group) {
    const Geometry& g = geometry();
    std::uint32_t* cursors = call_.lined_cursors(index_);
    bool advanced = false;
    bool missing = false;
    for (int offset = 1; offset < g.num_ranks; ++offset) {
      const int source = (call_.rank + offset) % g.num_ranks;
      const std::uint64_t ready = observe<Scope::device>(call_.lined_ready(source));
      if (ready == 0) {
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
    if (!all_landed()) return Step::advanced;
    phase_ = Phase::done;
    return Step::finished;
  }

  FLASHMOE_HD bool all_landed() const {
    for (int source = 0; source < geometry().num_ranks; ++source) {
      if (source != call_.rank &&
          call_.lined_cursors(index_)[source] < call_.image(call_.wave_slot(source, 0)).num_slots()) {
        return false;
      }
    }
    return true;
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
  TokenRange chunk_;
  std::int64_t token_ = 0;
  int peer_offset_ = 0;
  Wait wait_;
};

}  // namespace flashmoe
