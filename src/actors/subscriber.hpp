// Subscriber: watches what arrives. It reads headers and route lists of its sources, watches rows land, and moves the
// `landed` cursors from which the scheduler cuts m-blocks. A rank runs `roster.num_subscribers` of them, which share the
// sources out: one source's chain of steps takes as long as several side by side.
//
// Per source, in order: header | list of wave k (or ids) | rows of wave k, slot block by slot block.
// A source with few tokens sends ids in counted form, too (Call::listed_from_ids). Lists may run ahead of rows by wave_ring
// waves. The rank's own rows need no wait: they lie in x.
#pragma once

#include <cstdint>

#include "actors/call.hpp"
#include "actors/id_lines.hpp"
#include "actors/landed_rows.hpp"
#include "actors/line_io.hpp"
#include "actors/route_plan.hpp"
#include "actors/signal.hpp"
#include "actors/step.hpp"

namespace flashmoe {

/// Of a list that other threads of an engine may make in the subscriber's place; left: they will not.
enum class ListState : std::uint8_t { awaited, made, left };

template <class Group, class Fabric>
class Subscriber {
 public:
  /// `index`: of the rank's subscribers. It follows every num_subscribers-th source, counted from the rank's own on.
  FLASHMOE_HD Subscriber(const Call& call, Fabric fabric, int index) : call_(call), fabric_(fabric), index_(index) {}

  FLASHMOE_HD Step step(const Group& group) {
    if (num_open_ == 0) return Step::finished;
    const bool starts = num_open_ < 0;
    if (starts) start(group);
    bool advanced = false;
    wait_ = {};
    for (int offset = index_; offset < geometry().num_ranks; offset += call_.roster.num_subscribers) {
      const int source = call_.peer_at(offset);
      const Outcome outcome = follow(group, source);
      if (outcome == Outcome::failed) return Step::failed;
      // A rank without tokens has nothing to follow of its own, and says so once.
      if (outcome == Outcome::idle && !(starts && source == call_.rank && call_.own_waves() == 0)) continue;
      publish_progress(group, source);
      advanced = true;
    }
    if (!advanced) return Step::idle;
    return num_open_ == 0 ? Step::finished : Step::advanced;
  }

  FLASHMOE_HD const Wait& wait() const { return wait_; }

 private:
  enum class Outcome : std::uint8_t { idle, advanced, failed };

  FLASHMOE_HD const Geometry& geometry() const { return call_.geometry(); }
  FLASHMOE_HD int ring_slot(int source, std::uint64_t wave) const {
    return call_.lined() ? 0 : call_.ring_slot(call_.source_state(source).sequence + wave);
  }

  /// Keeps the wait that best explains why nothing moves.
  FLASHMOE_HD Outcome waiting(SignalKind signal, int peer, std::uint64_t expected, std::uint64_t seen) {
    const Wait wait{signal, peer, expected, seen};
    if (outranks(wait, wait_)) wait_ = wait;
    return Outcome::idle;
  }

  FLASHMOE_HD void start(const Group& group) {
    const int step = call_.roster.num_subscribers;
    num_open_ = (geometry().num_ranks - index_ + step - 1) / step;
    for (int i = group.index(); i < num_open_; i += group.size()) {
      const int source = call_.peer_at(index_ + i * step);
      SourceState& state = call_.source_state(source);
      state = {};
      state.sequence = call_.epoch_state().wave_sequence[source];
      if (source == call_.rank) know_header(group, source, call_.num_tokens, call_.own_waves());
    }
    group.sync();
  }

  /// One thread.
  FLASHMOE_HD void know_header(const Group& group, int source, std::int64_t num_tokens, std::int64_t num_waves) {
    SourceState& state = call_.source_state(source);
    state.num_tokens = static_cast<std::uint64_t>(num_tokens);
    state.num_waves = static_cast<std::uint64_t>(num_waves);
    state.header_known = 1;
    call_.epoch_state().num_waves[source] = state.num_waves;
    if constexpr (kHasHelp) {
      if (has_help(source, num_tokens)) group.ask_for_list(position_of(source), num_tokens);
    }
  }

  FLASHMOE_HD Outcome follow(const Group& group, int source) {
    const SourceState& state = call_.source_state(source);
    if (state.header_known == 0) return read_header(group, source);
    Outcome outcome = Outcome::idle;
    if (state.waves_listed < state.num_waves && state.waves_listed < state.waves_landed + max_waves_ahead()) {
      const bool has_ids = call_.listed_from_ids(static_cast<std::int64_t>(state.num_tokens));
      outcome = has_ids ? read_ids(group, source) : read_list(group, source);
      if (outcome == Outcome::failed) return outcome;
    }
    if (state.waves_landed < state.waves_listed) {
      const Outcome rows = watch_rows(group, source);
      if (rows != Outcome::idle) outcome = rows;
    }
    return outcome;
  }

  FLASHMOE_HD std::uint64_t max_waves_ahead() const { return static_cast<std::uint64_t>(geometry().wave_ring); }

  FLASHMOE_HD Outcome read_header(const Group& group, int source) {
    std::uint64_t* header = call_.header_words(source);
    const auto* line = call_.heap_at<const Line>(call_.heap.header(source, call_.epoch));
    if (!try_load_lines(group, line, kHeaderWords, line_tag(call_.generation, call_.epoch), header)) {
      return waiting(SignalKind::header, source, call_.epoch, 0);
    }
    group.sync();
    if (header[1] != call_.layer_id) return mismatch(SignalKind::wrong_layer, source, call_.layer_id, header[1]);
    if (header[2] != call_.plan_hash) return mismatch(SignalKind::wrong_plan, source, call_.plan_hash, header[2]);
    if (group.leader()) {
      know_header(group, source, static_cast<std::int64_t>(header[3]), static_cast<std::int64_t>(header[4]));
      if (call_.lined() && header[4] == 0) tell_lined_slots(source, 0);
    }
    group.sync();
    return Outcome::advanced;
  }

  FLASHMOE_HD Outcome mismatch(SignalKind kind, int source, std::uint64_t ours, std::uint64_t theirs) {
    wait_ = {kind, source, ours, theirs};
    return Outcome::failed;
  }

  // ---- counted form --------------------------------------------------------------------------------------------

  /// Lists: the rank's own when all planners have placed it, a peer's line by line.
  FLASHMOE_HD Outcome read_list(const Group& group, int source) {
    const Geometry& g = geometry();
    SourceState& state = call_.source_state(source);
    const std::uint64_t wave = state.waves_listed;
    const int slot = ring_slot(source, wave);
    const RouteImage image = call_.image(call_.wave_slot(source, slot));
    if (source == call_.rank) {
      const std::uint64_t target =
          static_cast<std::uint64_t>(call_.num_planners()) * (wave / static_cast<std::uint64_t>(g.wave_ring) + 1);
      const std::uint64_t placed = observe<Scope::device>(&call_.counters().placed[slot]);
      if (placed < target) return waiting(SignalKind::placed, call_.rank, target, placed);
      group.sync();
    } else {
      const std::uint64_t sequence = state.sequence + wave;
      const auto* lines = call_.heap_at<const Line>(call_.heap.list(source, slot));
      const std::uint64_t tag = line_tag(call_.generation, sequence);
      const auto begin = static_cast<std::int64_t>(state.words_read);
      std::int64_t read = begin;
      std::int64_t words = Line::kDataWords;  // of the list: the first line tells
      if (read == 0) {
        read = load_lines(group, lines, words, tag, image.words);
        group.sync();
      }
      if (read > 0) {
        words = RouteImage::num_words(g.num_local_experts, image.num_entries(), call_.plan.list_weights);
        const std::int64_t some = words - read < kListWords ? words - read : kListWords;
        if (some > 0) read += load_lines(group, lines + read / Line::kDataWords, some, tag, image.words + read);
      }
      if (read == begin) {
        return waiting(SignalKind::list, source, sequence, static_cast<std::uint64_t>(read / Line::kDataWords));
      }
      const bool complete = read >= words;
      if (group.leader()) state.words_read = complete ? 0 : static_cast<std::uint64_t>(read);
      group.sync();
      if (!complete) return Outcome::advanced;
    }
    open_wave(group, source, slot, wave);
    return Outcome::advanced;
  }

  /// Most words of a list read in one step: other sources wait no longer than for these.
  static constexpr std::int64_t kListWords = 320 * Line::kDataWords;

  // ---- lists made from ids ---------------------------------------------------------------------------------------

  /// Ids: every receiver works out for itself what each source sends it.
  FLASHMOE_HD Outcome read_ids(const Group& group, int source) {
    const SourceState& state = call_.source_state(source);
    const auto num_tokens = static_cast<std::int64_t>(state.num_tokens);
    const int slot = ring_slot(source, 0);
    if constexpr (kHasHelp) {
      if (has_help(source, num_tokens)) {
        switch (group.list_state(position_of(source))) {
          case ListState::awaited: return waiting_for_ids(source);
          case ListState::made:
            count_opened(group, source, slot, call_.wave(call_.wave_slot(source, slot)).num_entries);
            return Outcome::advanced;
          case ListState::left: break;
        }
      }
    }
    if (source != call_.rank) {
      const auto* lines = call_.heap_at<const Line>(call_.id_lines(source, state.sequence));
      if (!try_load_lines(group, lines, id_words(geometry(), num_tokens, call_.plan.list_weights),
                          call_.id_tag(state.sequence), call_.source_ids(source))) {
        return waiting_for_ids(source);
      }
      group.sync();
    }
    build_image(group, source, slot, source_routes(call_, source, num_tokens), num_tokens);
    open_wave(group, source, slot, 0);
    return Outcome::advanced;
  }

  FLASHMOE_HD Outcome waiting_for_ids(int source) {
    if (call_.lined()) return waiting(SignalKind::ids, source, call_.epoch, 0);
    return waiting(SignalKind::list, source, call_.source_state(source).sequence, 0);
  }

  /// Whether other threads make lists in its place: see cuda/hopper/list_desk.cuh.
  static constexpr bool kHasHelp = requires(const Group& group) { group.list_state(0); };
  /// Whether they make that of `source`: of the few ids of a lined call a warp makes it as soon.
  FLASHMOE_HD bool has_help(int source, std::int64_t num_tokens) const {
    return call_.listed_at_once(num_tokens) && (source == call_.rank || !call_.lined());
  }
  /// Whether they also tell that its rows have landed.
  FLASHMOE_HD bool told_by_others(int source) const {
    if constexpr (!kHasHelp) return false;
    return !call_.lined() && has_help(source, static_cast<std::int64_t>(call_.source_state(source).num_tokens));
  }
  /// Of a source among those that this subscriber follows.
  FLASHMOE_HD int position_of(int source) const {
    const int offset = source >= call_.rank ? source - call_.rank : source - call_.rank + geometry().num_ranks;
    return offset / call_.roster.num_subscribers;
  }

  /// The image that `source` would have sent.
  FLASHMOE_HD void build_image(const Group& group, int source, int slot, const SourceRoutes& routes,
                               std::int64_t num_tokens) {
    const Geometry& g = geometry();
    const RouteImage image = call_.image(call_.wave_slot(source, slot));
    const std::int32_t* ids = routes.ids;
    std::uint32_t* slots = call_.token_slots(index_);
    std::uint32_t num_slots = 0;
    for (std::int64_t base = 0; base < num_tokens && source != call_.rank; base += group.size()) {
      const std::int64_t token = base + group.index();
      const bool goes = token < num_tokens && goes_to(g, ids + token * g.top_k, call_.rank);
      const Scan scan = group.number(goes);
      if (goes) slots[token] = num_slots + scan.before;
      num_slots += scan.total;
    }
    if (source == call_.rank) {
      num_slots = static_cast<std::uint32_t>(num_tokens);
    } else if (group.leader() && call_.lined()) {
      tell_lined_slots(source, num_slots);  // rows land while the image is built
    }

    const int first_expert = call_.rank * g.num_local_experts;
    std::uint32_t* counts = call_.expert_counts(index_);
    for (int expert = group.index(); expert < g.num_local_experts; expert += group.size()) counts[expert] = 0;
    group.sync();
    count_experts(group, g, ids, {0, num_tokens}, first_expert, g.num_local_experts, counts);
    group.sync();
    const std::uint32_t entries = write_image_head(group, image, num_slots, counts);
    place_routes(
        group, g,
        {.ids = ids,
         .weights = routes.weights,
         .tokens = {0, num_tokens},
         .only_destination = call_.rank,
         .first_cursor = first_expert},
        counts, [&](int) { return image; }, [entries](int) { return entries; },
        [&](std::int32_t token, int) {
          return source == call_.rank ? static_cast<std::uint32_t>(token) : slots[token];
        });
    group.sync();
  }

  /// Lets the dispatchers land the source's row lines. One thread.
  FLASHMOE_HD void tell_lined_slots(int source, std::uint32_t num_slots) {
    publish(call_.lined_ready(source), std::uint64_t{num_slots} + 1);
  }

  // ---- both forms ----------------------------------------------------------------------------------------------

  /// Prepares a wave whose image is complete. The rank's own rows are where they are read: they count as landed at once.
  FLASHMOE_HD void open_wave(const Group& group, int source, int slot, std::uint64_t wave_index) {
    const Geometry& g = geometry();
    const int wave_slot = call_.wave_slot(source, slot);
    const RouteImage image = call_.image(wave_slot);
    const std::uint32_t num_slots = image.num_slots();
    const std::uint32_t num_entries = image.num_entries();
    if (group.leader()) call_.wave(wave_slot) = {num_slots, num_entries, wave_index, 0, 0};
    if (call_.pre_reduced()) index_slots(group, wave_slot, image);
    group.sync();
    std::uint32_t* offsets = call_.expert_offsets(wave_slot);
    std::uint32_t total = 0;
    FLASHMOE_ROLLED
    for (int base = 0; base < g.num_local_experts; base += kExpertsEach * group.size()) {
      const int first = base + group.index() * kExpertsEach;
      std::uint32_t counts[kExpertsEach];
      std::uint32_t landed[kExpertsEach];
      std::uint32_t routes = 0;
      FLASHMOE_UNROLL
      for (int i = 0; i < kExpertsEach; ++i) {
        const bool valid = first + i < g.num_local_experts;
        counts[i] = valid ? image.counts()[first + i] : 0;
        landed[i] = valid ? call_.landed(wave_slot)[first + i] : 0;
        routes += counts[i];
      }
      const Scan scan = group.scan(routes);
      std::uint32_t offset = total + scan.before;
      FLASHMOE_UNROLL
      for (int i = 0; i < kExpertsEach; ++i) {
        if (first + i < g.num_local_experts) {
          offsets[first + i] = offset;
          call_.wave_base(wave_slot)[first + i] = landed[i];
        }
        offset += counts[i];
      }
      total += scan.total;
    }
    if (group.leader()) offsets[g.num_local_experts] = total;
    group.sync();
    // From here on the image is not read: with its last route taken, planners may write the next wave's into it.
    if (source == call_.rank) advance_cursors(group, call_, wave_slot, image, num_slots, num_slots);
    count_opened(group, source, slot, num_entries);
  }

  FLASHMOE_HD void count_opened(const Group& group, int source, int slot, std::uint32_t num_entries) {
    if (group.leader()) {
      SourceState& state = call_.source_state(source);
      ++state.waves_listed;
      if (source == call_.rank) ++state.waves_landed;
      if (num_entries == 0) retire_empty(source, slot);
    }
    group.sync();
  }

  /// A wave without routes to this rank is over as soon as its list is read. Leader only.
  FLASHMOE_HD void retire_empty(int source, int slot) {
    if (!call_.lined()) fabric_.signal(source, call_.heap.consumed(call_.rank, slot), 1);
    add<Scope::device>(&call_.counters().retired_waves, std::uint64_t{1});
  }

  /// Which entries belong to each slot, by choice: what a reduce task walks.
  FLASHMOE_HD void index_slots(const Group& group, int wave_slot, const RouteImage& image) {
    const Geometry& g = geometry();
    const std::int64_t cells = std::int64_t{image.num_slots()} * g.top_k;
    for (std::int64_t cell = group.index(); cell < cells; cell += group.size()) call_.slot_routes(wave_slot, 0)[cell] = 0;
    group.sync();
    for (std::uint32_t index = static_cast<std::uint32_t>(group.index()); index < image.num_entries();
         index += static_cast<std::uint32_t>(group.size())) {
      const RouteEntry entry = image.entry(index);
      call_.slot_routes(wave_slot, entry.slot)[entry.return_row % static_cast<std::uint32_t>(g.top_k)] = index + 1;
    }
    group.sync();
  }

  /// Rows of another rank's oldest wave not fully landed, slot block by slot block.
  FLASHMOE_HD Outcome watch_rows(const Group& group, int source) {
    const Geometry& g = geometry();
    SourceState& state = call_.source_state(source);
    const std::uint64_t wave = state.waves_landed;
    const int slot = ring_slot(source, wave);
    const int wave_slot = call_.wave_slot(source, slot);
    const RouteImage image = call_.image(wave_slot);
    const std::uint32_t num_slots = image.num_slots();
    const auto block_slots = static_cast<std::uint32_t>(g.slot_block);
    std::uint32_t landed = state.slots_landed;
    while (landed < num_slots) {  // each thread looks at a block
      const std::uint32_t begin = landed + static_cast<std::uint32_t>(group.index()) * block_slots;
      const bool exists = begin < num_slots;
      const std::uint32_t rows = !exists ? 0 : num_slots - begin < block_slots ? num_slots - begin : block_slots;
      const std::uint32_t block = begin / block_slots;
      const Arrivals arrivals = exists ? arrivals_of(call_, source, wave_slot, slot, block, rows, num_slots) : Arrivals{};
      const std::uint32_t complete = count_leading(group, exists && arrivals.complete());
      landed += complete * block_slots;
      if (landed > num_slots) landed = num_slots;
      if (landed == num_slots || complete == static_cast<std::uint32_t>(group.size())) continue;
      const bool missing = static_cast<std::uint32_t>(group.index()) == complete;
      waiting(call_.lined() ? SignalKind::row_lines : SignalKind::arrival, source, group.first(missing, arrivals.target),
              group.first(missing, arrivals.seen));
      break;
    }
    // Who may tell sooner tells of whole waves: part of one, told here in the meantime, would take that back.
    if (landed < num_slots && (landed == state.slots_landed || told_by_others(source))) return Outcome::idle;
    group.sync();
    advance_cursors(group, call_, wave_slot, image, landed, num_slots);
    if (landed == num_slots && !call_.lined()) settle_bases(group, wave_slot, num_slots);
    if (group.leader()) {
      state.slots_landed = landed == num_slots ? 0 : landed;
      if (landed == num_slots) ++state.waves_landed;
    }
    group.sync();
    return Outcome::advanced;
  }

  /// The arrival counters never restart: remember what this wave added to each.
  FLASHMOE_HD void settle_bases(const Group& group, int wave_slot, std::uint32_t num_slots) {
    const std::uint32_t block_slots = static_cast<std::uint32_t>(geometry().slot_block);
    for (std::uint32_t block = static_cast<std::uint32_t>(group.index()); block * block_slots < num_slots;
         block += static_cast<std::uint32_t>(group.size())) {
      const std::uint32_t rest = num_slots - block * block_slots;
      call_.arrived_base(wave_slot)[block] += rest < block_slots ? rest : block_slots;
    }
    group.sync();
  }

  /// Tells the scheduler what is new of a source.
  FLASHMOE_HD void publish_progress(const Group& group, int source) {
    SourceState& state = call_.source_state(source);
    const bool open = state.header_known == 0 || state.waves_landed < state.num_waves;
    if (group.leader()) {
      const SourceProgress told{++state.times_told, open ? static_cast<std::uint32_t>(state.waves_landed) : kAllWavesClosed};
      publish(&call_.counters().progress[source], told.word());
    }
    group.sync();
    if (!open) --num_open_;
  }

  const Call& call_;
  Fabric fabric_;
  int index_;
  int num_open_ = -1;  ///< of its sources, those with waves to come; -1: not started
  Wait wait_;
};

}  // namespace flashmoe
