// Everything the actors of one rank know about one call: on the GPU the kernel's argument.
#pragma once

#include <cstdint>

#include "actors/local_layout.hpp"
#include "core/divide.hpp"
#include "core/heap_layout.hpp"
#include "flashmoe/types.hpp"

namespace flashmoe {

/// The arithmetic of the experts, as far as tiles need it.
struct ExpertMath {
  DType dtype = DType::bf16;
  Activation activation = Activation::silu;
  bool gated = true;
  bool up_bias = false;
  bool down_bias = false;
  bool weight_on_input = false;
  double swiglu_alpha = 1.702;
  double swiglu_limit = 7.0;
};

/// One rank's view of one epoch. Trivially copyable; pointers are valid for the whole epoch.
struct Call {
  HeapLayout heap;
  LocalLayout local_layout;
  char* heap_base[kMaxRanks] = {};  ///< every rank's heap, as this rank can reach it
  char* local = nullptr;
  int rank = 0;
  std::uint16_t generation = 1;
  std::uint64_t epoch = 0;
  std::uint64_t layer_id = 0;
  std::uint64_t plan_hash = 0;
  CallPlan plan;
  ExpertMath math;
  Roster roster;
  int flush_after_idle_steps = 0;  ///< idle scheduler steps with nothing running before partial m-blocks are cut

  const void* x = nullptr;                 // [num_tokens][hidden]
  const std::int32_t* topk_ids = nullptr;  // [num_tokens][top_k]
  const float* topk_weights = nullptr;     // [num_tokens][top_k]
  void* y = nullptr;                       // [num_tokens][hidden]
  std::int64_t num_tokens = 0;
  std::uint32_t given_tickets = 0;  ///< see TaskRing

  FLASHMOE_HD const Geometry& geometry() const { return heap.geometry; }
  FLASHMOE_HD int num_planners() const { return flashmoe::num_planners(geometry(), roster); }
  FLASHMOE_HD bool lined() const { return plan.wire_form == WireForm::lined; }
  FLASHMOE_HD bool pre_reduced() const { return plan.result_form == ResultForm::pre_reduced; }

  /// The `offset`-th rank after this one, round. offset: below num_ranks
  FLASHMOE_HD int peer_at(int offset) const {
    const int peer = rank + offset;
    return peer < geometry().num_ranks ? peer : peer - geometry().num_ranks;
  }

  /// Own waves of this call; a lined call is one wave.
  FLASHMOE_HD std::int64_t own_waves() const {
    return lined() ? (num_tokens > 0 ? 1 : 0) : num_waves(geometry(), num_tokens);
  }
  FLASHMOE_HD std::int64_t wave_begin(std::int64_t wave) const { return lined() ? 0 : wave * geometry().wave_tokens; }
  FLASHMOE_HD std::int64_t wave_size(std::int64_t wave) const {
    if (lined()) return num_tokens;
    const std::int64_t rest = num_tokens - wave_begin(wave);
    return rest < geometry().wave_tokens ? rest : geometry().wave_tokens;
  }

  /// Whether a rank with `tokens` tokens sends its ids, from which every receiver, itself among them, makes the list that it
  /// would have sent; else its planners make them. They are few, or the call is lined.
  FLASHMOE_HD bool listed_from_ids(std::int64_t tokens) const { return lined() || listed_at_once(tokens); }
  /// Whether there are so few that an engine with threads to spare may make a list of them in the place of the subscriber. Results
  /// are per_route then: pre_reduced ones need an index of slots, which subscribers make.
  FLASHMOE_HD bool listed_at_once(std::int64_t tokens) const {
    return tokens > 0 && tokens <= geometry().listed_tokens && !pre_reduced();
  }
  /// Where ids come to lie in the heaps of their receivers: in lined form of this epoch, else in the list's place of the source's
  /// wave of this sequence number.
  FLASHMOE_HD std::size_t id_lines(int source, std::uint64_t sequence) const {
    return lined() ? heap.lined_ids(source, epoch) : heap.list(source, ring_slot(sequence));
  }
  FLASHMOE_HD std::uint64_t id_tag(std::uint64_t sequence) const { return line_tag(generation, lined() ? epoch : sequence); }

  FLASHMOE_HD const std::int32_t* wave_ids(std::int64_t wave) const {  // [wave_size][top_k]
    return topk_ids + wave_begin(wave) * geometry().top_k;
  }

  /// Ranges of columns in which combiners take the tokens of a call in counted form: more where tokens are few, but so that each
  /// combiner of the call's end has one at most, as two would take twice as long. A part is at least what a warp reads of a
  /// cell at once.
  FLASHMOE_HD int combine_parts() const {
    constexpr int kFewestBytes = 512;
    const int combiners = roster.num_helpers > 0 ? roster.num_helpers : roster.num_dispatchers;
    int parts = 1;
    while (2 * parts * num_tokens <= combiners && geometry().row_bytes() >= 2 * parts * kFewestBytes) {
      parts *= 2;
    }
    return parts;
  }

  /// Parts in which dispatchers push or land each of `rows` rows that come as lines: several where there are fewer rows than
  /// dispatchers, as a row takes a warp one wait for memory after the other. A part is at least what a warp moves at once.
  /// Where there are several, no dispatcher has more than one.
  FLASHMOE_HD int row_parts(std::int64_t rows) const {
    constexpr std::int64_t kFewestLines = 4;
    const std::int64_t most = num_lines(geometry().row_words()) / kFewestLines;
    const std::int64_t parts = rows < 1 ? 1 : roster.num_dispatchers / static_cast<int>(rows);
    return static_cast<int>(parts < 1 || most < 1 ? 1 : parts < most ? parts : most);
  }

  /// This rank's own heap.
  template <class T>
  FLASHMOE_HD T* heap_at(std::size_t offset) const {
    return reinterpret_cast<T*>(heap_base[rank] + offset);
  }

  /// Where in its source's ring the wave of this sequence number lies (counted form).
  FLASHMOE_HD int ring_slot(std::uint64_t sequence) const {
    const auto ring = static_cast<std::uint64_t>(geometry().wave_ring);
    const bool power_of_two = (ring & (ring - 1)) == 0;  // as it is by default: a GPU takes long to divide 64 bits
    return static_cast<int>(power_of_two ? sequence & (ring - 1) : sequence % ring);
  }

  /// Whether a receiver whose `consumed` counter of the slot reads `seen` has retired all waves that lay there before: there were
  /// sequence / wave_ring, but a GPU takes long to divide them.
  FLASHMOE_HD bool has_retired(std::uint64_t seen, std::uint64_t sequence) const {
    return (seen + 1) * static_cast<std::uint64_t>(geometry().wave_ring) > sequence;
  }

  // Typed views of the local scratch. `wave_slot` is source * wave_ring + ring slot.
  FLASHMOE_HD int wave_slot(int source, int ring_slot) const { return source * geometry().wave_ring + ring_slot; }
  FLASHMOE_HD int source_of(std::uint32_t wave_slot) const {
    return divide_small(static_cast<int>(wave_slot), geometry().wave_ring);
  }
  FLASHMOE_HD int ring_slot_of(std::uint32_t wave_slot) const {
    return static_cast<int>(wave_slot) - source_of(wave_slot) * geometry().wave_ring;
  }
  FLASHMOE_HD int num_wave_slots() const { return geometry().num_ranks * geometry().wave_ring; }
  /// From one wave slot that may have rows to the next: a lined wave lies in its source's first.
  FLASHMOE_HD int slots_apart() const { return lined() ? geometry().wave_ring : 1; }
  FLASHMOE_HD EpochState& epoch_state() const { return *at<EpochState>(local_layout.epoch_state); }
  FLASHMOE_HD EpochCounters& counters() const { return *at<EpochCounters>(local_layout.counters); }
  FLASHMOE_HD TaskRingState& task_ring_state() const { return *at<TaskRingState>(local_layout.task_ring); }
  FLASHMOE_HD TaskRing task_ring() const { return task_ring(plan.tickets_at_once); }
  /// `tickets_at_once`: the plan's, for who takes tasks and knows it when it is compiled.
  FLASHMOE_HD TaskRing task_ring(int tickets_at_once) const {
    return {&task_ring_state(), at<std::uint64_t>(local_layout.task_cells), local_layout.task_ring_capacity,
            {.num_up_tiles = geometry().num_up_tiles(),
             .num_down_tiles = geometry().num_down_tiles(),
             .up_tiles = plan.up_tiles,
             .down_tiles = plan.down_tiles,
             .halved_down_tiles = plan.halved_down_tiles,
             .num_m_blocks = geometry().num_m_blocks,
             .tickets_at_once = tickets_at_once},
            given_tickets};
  }
  FLASHMOE_HD MBlock& m_block(std::uint32_t index) const { return at<MBlock>(local_layout.m_blocks)[index]; }
  FLASHMOE_HD SourceState& source_state(int source) const {
    return at<SourceState>(local_layout.source_states)[source];
  }
  FLASHMOE_HD WaveSlot& wave(int slot) const { return at<WaveSlot>(local_layout.wave_slots)[slot]; }
  FLASHMOE_HD std::uint64_t* arrived_base(int slot) const {  // [slot_blocks]
    return at<std::uint64_t>(local_layout.arrived_base) + std::int64_t{slot} * geometry().num_slot_blocks();
  }
  /// What every expert rank's result counter of a token block must reach for its results to be complete.
  FLASHMOE_HD std::uint64_t* result_targets(int ring_slot, std::int64_t token_block) const {  // [num_ranks]
    return at<std::uint64_t>(local_layout.result_targets) +
           (std::int64_t{ring_slot} * geometry().num_token_blocks() + token_block) * geometry().num_ranks;
  }
  /// Sums of the chunks' counts, kChunkSet planners a set; zero while no wave is being planned.
  FLASHMOE_HD std::uint32_t* set_counts(int set) const {  // same shape as chunk_counts
    return at<std::uint32_t>(local_layout.set_counts) +
           std::int64_t{set} * (geometry().num_ranks + geometry().num_experts());
  }
  FLASHMOE_HD std::uint32_t* chunk_counts(int planner) const {  // [num_ranks] slots, then [num_experts] routes
    return at<std::uint32_t>(local_layout.chunk_counts) +
           std::int64_t{planner} * (geometry().num_ranks + geometry().num_experts());
  }
  FLASHMOE_HD std::uint32_t* chunk_cursors(int planner) const {  // same shape
    return at<std::uint32_t>(local_layout.chunk_cursors) +
           std::int64_t{planner} * (geometry().num_ranks + geometry().num_experts());
  }
  /// The first slot of a planner's chunk on every other rank, its own note.
  FLASHMOE_HD std::uint32_t* chunk_slots(int planner) const {  // [num_ranks]
    return at<std::uint32_t>(local_layout.chunk_slots) + std::int64_t{planner} * geometry().num_ranks;
  }
  /// A token's slot on every other rank, counted from its chunk's first; undefined where the token does not go.
  FLASHMOE_HD std::uint32_t* slot_map(std::int64_t token) const {  // [num_ranks]
    return at<std::uint32_t>(local_layout.slot_map) + token * geometry().num_ranks;
  }
  FLASHMOE_HD PushedRows* pushed_rows(int dispatcher) const {  // [num_ranks]
    return at<PushedRows>(local_layout.pushed_rows) + std::int64_t{dispatcher} * geometry().num_ranks;
  }
  /// The image this rank sends to `destination`; its own goes straight where it is read.
  FLASHMOE_HD RouteImage own_image(int destination, int ring_slot) const {
    if (destination == rank) return image(wave_slot(rank, ring_slot));
    return {at<std::uint64_t>(local_layout.own_images) + destination * local_layout.image_words,
            geometry().num_local_experts};
  }
  FLASHMOE_HD RouteImage image(int slot) const {
    return {at<std::uint64_t>(local_layout.images) + slot * local_layout.image_words,
            geometry().num_local_experts};
  }
  FLASHMOE_HD std::uint32_t* expert_offsets(int slot) const {  // [num_local_experts + 1]
    return at<std::uint32_t>(local_layout.expert_offsets) + std::int64_t{slot} * (geometry().num_local_experts + 1);
  }
  /// Rows of each expert that have landed (its subscriber's) and that m-blocks have taken (the scheduler's), over all
  /// waves of the wave slot, and what `landed` was when its current wave began. They wrap; only differences count.
  FLASHMOE_HD std::uint32_t* wave_base(int slot) const {  // [num_local_experts]
    return at<std::uint32_t>(local_layout.wave_base) + std::int64_t{slot} * geometry().num_local_experts;
  }
  FLASHMOE_HD std::uint32_t* landed(int slot) const {  // [num_local_experts]
    return at<std::uint32_t>(local_layout.landed) + std::int64_t{slot} * geometry().num_local_experts;
  }
  FLASHMOE_HD std::uint32_t* taken(int slot) const {  // [num_local_experts]
    return at<std::uint32_t>(local_layout.taken) + std::int64_t{slot} * geometry().num_local_experts;
  }
  FLASHMOE_HD std::uint32_t* expert_counts(int subscriber) const {  // [num_local_experts], its scratch
    return at<std::uint32_t>(local_layout.expert_counts) + std::int64_t{subscriber} * geometry().num_local_experts;
  }
  /// Entry + 1 of each of a slot's routes to this rank, by choice; 0 where the choice goes elsewhere.
  FLASHMOE_HD std::uint32_t* slot_routes(int slot, std::int64_t token_slot) const {  // [top_k]
    return at<std::uint32_t>(local_layout.slot_routes) +
           (std::int64_t{slot} * geometry().slot_tokens() + token_slot) * geometry().top_k;
  }
  FLASHMOE_HD std::uint64_t* header_words(int source) const {  // [kHeaderWords]
    return at<std::uint64_t>(local_layout.header_words) + std::int64_t{source} * kHeaderWords;
  }
  FLASHMOE_HD std::uint32_t* token_slots(int subscriber) const {  // [id_tokens], its scratch
    return at<std::uint32_t>(local_layout.token_slots) + std::int64_t{subscriber} * geometry().id_tokens();
  }
  /// A source's ids, and weights behind them, as they came; of the rank itself: as it sends them.
  FLASHMOE_HD std::uint64_t* source_ids(int source) const {
    return at<std::uint64_t>(local_layout.source_ids) +
           source * id_words(geometry(), geometry().id_tokens(), geometry().list_weights);
  }
  /// One more than the slots of the source's wave, once they are known.
  FLASHMOE_HD std::uint64_t* lined_ready(int source) const {
    return at<std::uint64_t>(local_layout.lined_ready) + source;
  }
  FLASHMOE_HD std::uint64_t* lined_arrivals(int source) const {  // [lined_slot_blocks]
    return at<std::uint64_t>(local_layout.lined_arrivals) + std::int64_t{source} * lined_slot_blocks(geometry());
  }
  FLASHMOE_HD std::uint32_t* lined_cursors(int dispatcher) const {  // [num_ranks]
    return at<std::uint32_t>(local_layout.lined_cursors) + std::int64_t{dispatcher} * geometry().num_ranks;
  }
  FLASHMOE_HD char* lined_row(int source, std::int64_t slot) const {  // [hidden]
    return local + local_layout.lined_rows + (std::int64_t{source} * geometry().lined_tokens + slot) *
                                                 geometry().row_bytes();
  }
  FLASHMOE_HD char* intermediate_row(std::uint32_t m_block, std::uint32_t row) const {  // [intermediate]
    return local + local_layout.intermediate +
           (std::int64_t{m_block} * geometry().tile.most_rows() + row) * geometry().intermediate * geometry().element_bytes;
  }
  FLASHMOE_HD TaggedPacket* tagged_row(std::uint32_t m_block, std::uint32_t row) const {  // [intermediate / kElements]
    return at<TaggedPacket>(local_layout.tagged_rows) + (std::int64_t{m_block} * geometry().tile.tagged_rows + row) *
                                                            (geometry().intermediate / TaggedPacket::kElements);
  }
  FLASHMOE_HD char* partial_row(int slot, std::int64_t entry) const {  // [hidden] accumulators
    return local + local_layout.partial_results +
           (std::int64_t{slot} * geometry().slot_tokens() * geometry().top_k + entry) * geometry().hidden *
               accumulator_bytes(geometry());
  }

  FLASHMOE_HD const char* x_row(std::int64_t token) const {
    return static_cast<const char*>(x) + token * geometry().row_bytes();
  }
  FLASHMOE_HD char* y_row(std::int64_t token) const { return static_cast<char*>(y) + token * geometry().row_bytes(); }

 private:
  template <class T>
  FLASHMOE_HD T* at(std::size_t offset) const {
    return reinterpret_cast<T*>(local + offset);
  }
};

/// Where the row behind an entry of a wave's route image lies.
FLASHMOE_HD inline const char* token_row(const Call& call, std::uint32_t wave_slot, RouteEntry entry) {
  const int source = call.source_of(wave_slot);
  if (source == call.rank) {
    return call.x_row(call.wave_begin(static_cast<std::int64_t>(call.wave(static_cast<int>(wave_slot)).wave_index)) +
                      entry.slot);
  }
  if (call.lined()) return call.lined_row(source, entry.slot);
  return call.heap_at<const char>(call.heap.token_row(source, call.ring_slot_of(wave_slot), entry.slot));
}

}  // namespace flashmoe
