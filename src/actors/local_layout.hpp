// A rank's own scratch memory: everything its actors share that no peer sees. Same rule as the heap: one pure
// function from sizes to offsets.
#pragma once

#include <cstddef>
#include <cstdint>

#include "actors/task_ring.hpp"
#include "core/arena.hpp"
#include "core/geometry.hpp"
#include "core/route_image.hpp"

namespace flashmoe {

/// How many actors of the kinds that come in numbers a rank runs, and what follows from who runs them. Free to differ between
/// ranks and calls.
struct Roster {
  int num_dispatchers = 1;  ///< each with a combiner beside it
  int num_processors = 1;
  int num_subscribers = 1;  ///< at most one a source
  int num_helpers = 0;      ///< combiners that join when a call's tiles run out, faster than those beside dispatchers
  bool operator==(const Roster&) const = default;

  /// A GPU's service warps in order: subscribers, the scheduler, dispatchers.
  FLASHMOE_HD constexpr int scheduler() const { return num_subscribers; }
  FLASHMOE_HD constexpr int first_dispatcher() const { return num_subscribers + 1; }
};

/// Tokens of the smallest chunk that is worth a planner: planning takes a walk over the chunk's routes.
inline constexpr int kPlanningTokens = 4;

inline constexpr int kMostPlanners = 128;

/// Dispatchers that plan a wave together: each plans a chunk, and sums the counts of all the others' chunks.
FLASHMOE_HD constexpr int num_planners(const Geometry& g, const Roster& roster) {
  const int chunks = (g.wave_tokens + kPlanningTokens - 1) / kPlanningTokens;
  const int useful = chunks < kMostPlanners ? chunks : kMostPlanners;
  return roster.num_dispatchers < useful ? roster.num_dispatchers : useful;
}

/// Planners whose counts are also summed together: what comes before a chunk is the sum of whole sets and of the chunks
/// before it in its own, so that each planner reads few counts however many there are.
inline constexpr int kChunkSet = 16;
FLASHMOE_HD constexpr int num_chunk_sets(int planners) { return (planners + kChunkSet - 1) / kChunkSet; }

/// Counters of one epoch. The last actor out clears them; no peer ever touches them.
struct EpochCounters {
  std::uint64_t planned[Limits::wave_ring];   ///< planners that counted their chunk of the slot's own waves
  std::uint64_t placed[Limits::wave_ring];    ///< planners that placed it
  std::uint64_t pushed;                       ///< dispatchers that pushed their share of a wave, if any, over all own waves
  std::uint64_t combined[Limits::wave_ring];  ///< parts of tokens combined of the slot's own waves
  std::uint64_t combine_claims;               ///< parts of tokens that combiners have taken (counted form)
  std::uint64_t progress[Limits::num_ranks];  ///< SourceProgress of every source
  std::uint64_t retired_waves;                ///< waves whose results are all pushed (counted form), or that have none here
  std::uint64_t retired_blocks;               ///< m-blocks whose down tiles are all pushed
};

/// What stays from one epoch to the next.
struct EpochState {
  std::uint64_t epoch;                            ///< calls finished on this heap
  std::uint64_t wave_sequence[Limits::num_ranks];  ///< waves every source has sent in counted form
  std::uint64_t num_waves[Limits::num_ranks];      ///< of the current epoch, from the headers
};

/// What a source's subscriber tells the scheduler, in one word of EpochCounters.
struct SourceProgress {
  std::uint32_t version = 0;       ///< times that the subscriber got on with the source
  std::uint32_t closed_waves = 0;  ///< waves whose rows have all landed; kAllWavesClosed: none is to come

  FLASHMOE_HD std::uint64_t word() const { return std::uint64_t{version} << 32 | closed_waves; }
  FLASHMOE_HD static SourceProgress of(std::uint64_t word) {
    return {static_cast<std::uint32_t>(word >> 32), static_cast<std::uint32_t>(word)};
  }
};
inline constexpr std::uint32_t kAllWavesClosed = ~std::uint32_t{0};

/// What its subscriber keeps about one source.
struct SourceState {
  std::uint64_t num_tokens;
  std::uint64_t num_waves;
  std::uint64_t sequence;          ///< of its first wave of the epoch
  std::uint64_t waves_listed;      ///< route images decoded this epoch
  std::uint64_t waves_landed;      ///< waves whose rows are all here
  std::uint64_t words_read;        ///< words of the image being read
  std::uint32_t slots_landed;      ///< slots of the oldest wave not fully landed
  std::uint32_t header_known;
  std::uint32_t times_told;        ///< version of the latest SourceProgress
};

/// One wave's state at the receiving rank.
struct WaveSlot {
  std::uint32_t num_slots;
  std::uint32_t num_entries;
  std::uint64_t wave_index;   ///< within the epoch
  std::uint64_t retired;      ///< counted form: entries whose results are pushed (per_route) or kept (pre_reduced)
  std::uint64_t reduced;      ///< slots reduced (pre_reduced)
  std::uint32_t completed_by = 0;  ///< m-block whose place its reduce tasks hold (pre_reduced)
};

/// Slots that reduce task `tile` of the wave covers.
FLASHMOE_HD inline std::uint32_t reduce_slots(const WaveSlot& wave, std::uint32_t tile) {
  const std::uint32_t rest = wave.num_slots - tile * kReduceSlots;
  return rest < kReduceSlots ? rest : kReduceSlots;
}

/// Slots [first, first + count) of one peer that a dispatcher has filled.
struct PushedRows {
  std::uint32_t first;
  std::uint32_t count;
};

struct LocalLayout {
  Geometry geometry;
  Roster roster;
  std::uint32_t task_ring_capacity = 0;
  std::int64_t image_words = 0;  ///< from one route image to the next

  std::size_t epoch_state = 0;       // EpochState
  std::size_t counters = 0;          // EpochCounters
  std::size_t task_ring = 0;         // TaskRingState
  std::size_t task_cells = 0;        // [task_ring_capacity] u64
  std::size_t m_blocks = 0;          // [num_m_blocks] MBlock
  std::size_t source_states = 0;     // [num_ranks] SourceState
  std::size_t wave_slots = 0;        // [num_ranks][wave_ring] WaveSlot
  std::size_t arrived_base = 0;      // [num_ranks][wave_ring][slot_blocks] u64
  std::size_t result_targets = 0;    // [wave_ring][token_blocks][num_ranks] u64
  std::size_t set_counts = 0;        // [num_chunk_sets][num_ranks + num_experts] u32
  std::size_t chunk_counts = 0;      // [num_planners][num_ranks + num_experts] u32
  std::size_t chunk_cursors = 0;     // [num_planners][num_ranks + num_experts] u32
  std::size_t chunk_slots = 0;       // [num_planners][num_ranks] u32
  std::size_t slot_map = 0;          // [slot_tokens][num_ranks] u32
  std::size_t pushed_rows = 0;       // [num_dispatchers][num_ranks] PushedRows
  std::size_t own_images = 0;        // [num_ranks][max_image_words] u64, indexed by destination
  std::size_t images = 0;            // [num_ranks][wave_ring][max_image_words] u64
  std::size_t expert_offsets = 0;    // [num_ranks][wave_ring][num_local_experts + 1] u32
  std::size_t wave_base = 0;         // [num_ranks][wave_ring][num_local_experts] u32
  std::size_t landed = 0;            // [num_ranks][wave_ring][num_local_experts] u32
  std::size_t taken = 0;             // [num_ranks][wave_ring][num_local_experts] u32
  std::size_t expert_counts = 0;     // [num_subscribers][num_local_experts] u32
  std::size_t slot_routes = 0;       // [num_ranks][wave_ring][slot_tokens][top_k] u32, pre_reduced only
  std::size_t header_words = 0;      // [num_ranks][kHeaderWords] u64
  std::size_t token_slots = 0;       // [num_subscribers][id_tokens] u32
  std::size_t source_ids = 0;        // [num_ranks][words of id_tokens] u64
  std::size_t lined_ready = 0;       // [num_ranks] u64
  std::size_t lined_arrivals = 0;    // [num_ranks][lined slot blocks] u64
  std::size_t lined_cursors = 0;     // [num_dispatchers][num_ranks] u32
  std::size_t lined_rows = 0;        // [num_ranks][lined_tokens][hidden]
  std::size_t intermediate = 0;      // [num_m_blocks][tile.most_rows()][intermediate]
  std::size_t tagged_rows = 0;       // [num_m_blocks][tile.tagged_rows][intermediate / TaggedPacket::kElements] TaggedPacket
  std::size_t partial_results = 0;   // [num_ranks][wave_ring][slot_tokens * top_k][hidden] accumulators, pre_reduced only
  std::size_t total_bytes = 0;
};

/// Words of an epoch header: epoch, layer id, plan hash, num_tokens, num_waves, generation.
inline constexpr int kHeaderWords = 6;

/// Words of a rank's ids, two a word, and of its routing weights behind them.
FLASHMOE_HD constexpr std::int64_t id_words(const Geometry& g, std::int64_t num_tokens, bool weights) {
  return (num_tokens * g.top_k + 1) / 2 * (weights ? 2 : 1);
}
FLASHMOE_HD constexpr int lined_slot_blocks(const Geometry& g) {
  return (g.lined_tokens + g.slot_block - 1) / g.slot_block;
}
/// Accumulators are fp32, or fp64 for fp64 layers.
FLASHMOE_HD constexpr int accumulator_bytes(const Geometry& g) { return g.element_bytes == 8 ? 8 : 4; }

/// Cells of the task ring, a power of two, so many that no batch is overwritten before its tasks have been found. One that
/// has not been keeps its m-block b in its place (a reduce task that of an m-block that completed the wave). Places are
/// granted in order, so between that batch and the latest there are at most, with N places, the up batches of N m-blocks
/// after b, the down batches of these and of N before b, the reduce batches of the waves that these 2 N complete, each no
/// more than it has segments, and the exits. (Cut early, all have their up batches first, at most N, in any order.) A ticket
/// without a task keeps nothing in its place, but nobody looks for it.
constexpr std::uint32_t task_ring_capacity(const Geometry& g) {
  const std::int64_t sources = std::int64_t{g.num_ranks} * g.wave_ring;
  const std::int64_t waves =
      g.pre_reduced ? (sources < MBlock::kMaxSegments ? sources : MBlock::kMaxSegments) : 0;
  const std::int64_t most = g.num_m_blocks * (3 + 2 * waves) + 1;
  std::uint32_t capacity = 32;  // the threads of a warp look at a cell each: TaskRing::find()
  while (capacity < most) capacity *= 2;
  return capacity;
}

constexpr LocalLayout make_local_layout(const Geometry& g, const Roster& roster) {
  LocalLayout layout;
  layout.geometry = g;
  layout.roster = roster;
  layout.task_ring_capacity = task_ring_capacity(g);
  layout.image_words = max_image_words(g);
  Arena arena;
  const auto take = [&arena](std::int64_t count, std::size_t element_bytes) {
    return arena.take(static_cast<std::size_t>(count) * element_bytes);
  };
  const std::int64_t waves = std::int64_t{g.num_ranks} * g.wave_ring;
  const std::int64_t keys = g.num_ranks + g.num_experts();
  const std::int64_t slots = g.slot_tokens();
  layout.epoch_state = take(1, sizeof(EpochState));
  layout.counters = take(1, sizeof(EpochCounters));
  layout.task_ring = take(1, sizeof(TaskRingState));
  layout.task_cells = take(layout.task_ring_capacity, 8);
  layout.m_blocks = take(g.num_m_blocks, sizeof(MBlock));
  layout.source_states = take(g.num_ranks, sizeof(SourceState));
  layout.wave_slots = take(waves, sizeof(WaveSlot));
  layout.arrived_base = take(waves * g.num_slot_blocks(), 8);
  layout.result_targets = take(waves * g.num_token_blocks(), 8);
  layout.set_counts = take(num_chunk_sets(num_planners(g, roster)) * keys, 4);
  layout.chunk_counts = take(num_planners(g, roster) * keys, 4);
  layout.chunk_cursors = take(num_planners(g, roster) * keys, 4);
  layout.chunk_slots = take(std::int64_t{num_planners(g, roster)} * g.num_ranks, 4);
  layout.slot_map = take(slots * g.num_ranks, 4);
  layout.pushed_rows = take(std::int64_t{roster.num_dispatchers} * g.num_ranks, sizeof(PushedRows));
  layout.own_images = take(g.num_ranks * layout.image_words, 8);
  layout.images = take(waves * layout.image_words, 8);
  layout.expert_offsets = take(waves * (g.num_local_experts + 1), 4);
  layout.wave_base = take(waves * g.num_local_experts, 4);
  layout.landed = take(waves * g.num_local_experts, 4);
  layout.taken = take(waves * g.num_local_experts, 4);
  layout.expert_counts = take(std::int64_t{roster.num_subscribers} * g.num_local_experts, 4);
  layout.slot_routes = take(g.pre_reduced ? waves * slots * g.top_k : 0, 4);
  layout.header_words = take(std::int64_t{g.num_ranks} * kHeaderWords, 8);
  layout.token_slots = take(std::int64_t{roster.num_subscribers} * g.id_tokens(), 4);
  layout.source_ids = take(g.num_ranks * id_words(g, g.id_tokens(), g.list_weights), 8);
  layout.lined_ready = take(g.num_ranks, 8);
  layout.lined_arrivals = take(std::int64_t{g.num_ranks} * lined_slot_blocks(g), 8);
  layout.lined_cursors = take(std::int64_t{roster.num_dispatchers} * g.num_ranks, 4);
  layout.lined_rows = take(std::int64_t{g.num_ranks} * g.lined_tokens, static_cast<std::size_t>(g.row_bytes()));
  layout.intermediate = take(std::int64_t{g.num_m_blocks} * g.tile.most_rows() * g.intermediate,
                             static_cast<std::size_t>(g.element_bytes));
  layout.tagged_rows = take(std::int64_t{g.num_m_blocks} * g.tile.tagged_rows * g.intermediate / TaggedPacket::kElements,
                            sizeof(TaggedPacket));
  layout.partial_results = take(g.pre_reduced ? waves * slots * g.top_k * g.hidden : 0,
                                static_cast<std::size_t>(accumulator_bytes(g)));
  layout.total_bytes = arena.total_bytes();
  return layout;
}

}  // namespace flashmoe
