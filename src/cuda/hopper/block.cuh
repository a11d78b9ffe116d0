// What the roles of a Hopper block share: operand stages, task slots, and the barriers between them.
//
//   foreman --filled--> loaders --full--> consumers      (a slot names the task, a stage holds 64 elements of its k)
//   foreman --stored--> loaders                          (rows of a task are there; weights may be loaded before)
//   foreman --located--> consumers                       (where a task's rows are, or its results go, is in its slot)
//   foreman <--ending-- loaders                          (it may take the next task)
//   foreman <--done---- loaders, consumers
//                       loaders <--empty-- consumers
//                       loaders <--ready-- loaders of the pair's other block (its stage takes shared weights)
//   own heap --cells--> a consumer warp              (once it has left the tasks and combines)
//   consumers --pushed--> dispatcher                 (of a call listed from ids: they have pushed its rows, or will not)
//   consumers --opened--> foreman                    (of a call of few tokens of one rank: they have found the first task, or none)
//   consumers --listed--> loaders                    (of a subscriber's or the scheduler's block: lists, or m-blocks, are made in
//                                                     the stages)
//   dispatcher --rows--> consumers                   (no barrier: those that wait for the first task push some of them)
//   subscriber --desk--> consumers                   (no barrier: until their first task they make lists for it)
//   scheduler --cut_desk--> consumers                (no barrier: they cut a call's m-blocks for it, or leave them to it)
//   consumers --plan_desk--> dispatcher              (no barrier: they plan its chunk of the first wave, or leave that to it)
// Waits on these barriers need no deadline: the foreman alone waits for other ranks, and ends the others with an exit task;
// loaders that look at tagged rows leave them at `stored`, which the foreman tells when the rank gives up, too;
// of a shared task the foremen of both blocks fill their slots, whatever happens; copies of cells come from this GPU's memory,
// and are asked for when the cells are there; rows are pushed early without any wait. Lists are left, and so is what is told of
// their rows, when the rows of the first task are there, m-blocks and chunks when a task has come: so says the foreman, also of an
// exit. Nor does SharedRows::await(): whoever has taken a row is storing it, and waits for nothing; nor do those who open a block.
#pragma once

#include <cstdint>
#include <type_traits>

#include "actors/call.hpp"
#include "actors/task.hpp"
#include "cuda/fabric.cuh"
#include "cuda/hopper/block_pair.cuh"
#include "cuda/hopper/cut_desk.cuh"
#include "cuda/hopper/list_desk.cuh"
#include "cuda/hopper/plan_desk.cuh"
#include "cuda/hopper/ptx.cuh"
#include "cuda/hopper/shared_rows.cuh"
#include "cuda/hopper/tile_shape.hpp"
#include "cuda/tracing.cuh"

namespace flashmoe::cuda_backend::hopper {

/// One task, with what its rows are.
struct TaskSlot {
  std::uint64_t rows[kMostRows];  ///< up: where each token row is. down: where each result goes; see Foreman
  union {
    float weights[kMostRows];           ///< up, weight_on_input: routing weights
    std::uint32_t counters[kMostRows];  ///< down, counted per_route: result_counter() of each row
  };
  Task task;
  std::uint32_t number;           ///< of the task, among the block's
  std::uint32_t num_rows;         ///< reduce: number of slots
  std::uint32_t local_expert;
  bool decode;   ///< up, down: a decode tile
  bool streams;  ///< up, down: its weights are read once, most likely
  bool tagged;   ///< up, down: the m-block's intermediate is in tagged packets: see tagged_rows.cuh
  bool quads;    ///< down: products are of four tiles, as long as there are as many
  bool shared;   ///< up, down: the pair's other block has a task of the same weights; each loads half of them for both
  bool aligns;   ///< shared: the two blocks may be at different stages
};
inline constexpr int kTaskSlots = 4;

/// What an up or down task multiplies. `group_size`: m-blocks of its expert that were cut together, all of which want its weights.
/// `tagged`: see MBlock. `decode_rows`: most rows of an m-block alone whose tasks are decode tiles for being small. One thread.
template <bool kPairs>
__device__ inline void describe_product(TaskSlot& slot, const Call& call, std::uint32_t local_expert, std::uint32_t num_rows,
                                        std::uint32_t group_size, bool tagged, std::uint32_t decode_rows) {
  const bool few_rows = group_size == 1 && num_rows <= decode_rows;
  slot.num_rows = num_rows;
  slot.local_expert = local_expert;
  slot.streams = kPairs ? few_rows || group_size == 2 : group_size == 1;  // those of two a pair of blocks reads once
  slot.decode = few_rows || num_rows > kTileRows;
  slot.quads = !kPairs && slot.task.kind == TaskKind::down && few_rows && num_rows <= kQuadRows && call.lined();
  slot.tagged = !kPairs && tagged;
}

/// Of task `number`'s slot: its barriers' phase.
__device__ inline std::uint32_t parity_of(std::uint32_t number) { return number / kTaskSlots & 1u; }

struct BlockMemory {
  alignas(1024) char stages[kStages][kStageBytes];  // token rows, then weight rows
  alignas(128) char staging[kConsumerWarps][kStagingBytes];
  alignas(16) TaskSlot slots[kTaskSlots];
  alignas(16) Call call;
  Traffic traffic;
  SharedRows rows;             ///< of the block's one dispatcher
  std::uint32_t slots_before[kMaxRanks];  ///< of the dispatcher's first row on every other rank, see EarlyPush
  bool pushed_early;           ///< what EarlyPush says
  ListDesk desk;               ///< of the block's subscriber, where it has one
  CutDesk cut_desk;            ///< of the block's scheduler, where it has one
  PlanDesk plan_desk;          ///< of the block's dispatcher, where it has one
  PairMail mail;
  int tiles[kConsumerWarps];   ///< each one's, see Consumer::tile()
  std::uint32_t ticket;        ///< the given one, where the block has one
  bool opens;                  ///< what Opening says
  bool gave_up;
  Barrier full[kStages];       ///< 1 with the bytes of bulk copies, and every loader thread
  Barrier empty[kStages];      ///< every consumer warp
  Barrier ready[kStages];      ///< the pair's other block: its stage takes shared weights
  // Every lane that touches a slot arrives for itself: racecheck knows no arrival for a whole warp.
  Barrier filled[kTaskSlots];  ///< the foreman
  Barrier stored[kTaskSlots];  ///< the foreman, once the rows of the task are found and there
  Barrier located[kTaskSlots];  ///< the foreman, once they are found
  Barrier ending[kTaskSlots];  ///< one loader thread, when the last steps are loaded
  Barrier done[kTaskSlots];    ///< every loader and every consumer
  Barrier pushed;              ///< every consumer, once EarlyPush has run
  Barrier opened;              ///< every consumer, once Opening has run
  Barrier listed;              ///< every consumer of a block that lends its stages, once they are the loaders'
  Barrier cells[kConsumerWarps];  ///< the bytes of result cells that a consumer warp combines
  TraceLog logs[kTraceRows.total()];

  __device__ void init_barriers() {
    for (Barrier& barrier : full) barrier.init(1 + kLoaderWarps * 32);
    for (Barrier& barrier : empty) barrier.init(kConsumerWarps);
    for (Barrier& barrier : ready) barrier.init(1);
    for (Barrier& barrier : filled) barrier.init(32);
    for (Barrier& barrier : stored) barrier.init(32);
    for (Barrier& barrier : located) barrier.init(32);
    for (Barrier& barrier : ending) barrier.init(1);
    for (Barrier& barrier : done) barrier.init((kLoaderWarps + kConsumerWarps) * 32);
    pushed.init(kConsumerThreads);
    opened.init(kConsumerThreads);
    listed.init(kConsumerThreads);
    for (Barrier& barrier : cells) barrier.init(1);
    for (std::uint32_t& slots : slots_before) slots = 0;
    fence_barrier_init();
  }
};
static_assert(sizeof(BlockMemory) <= 227 * 1024);
static_assert(kServiceWarps == 1);  // BlockMemory::rows and plan_desk have one dispatcher, desk one subscriber

/// Number of the block's dispatcher; below 0: it has none.
__device__ inline int dispatcher_of(const Call& call) { return static_cast<int>(blockIdx.x) - call.roster.first_dispatcher(); }
/// Whether the block has the rank's scheduler.
__device__ inline bool has_scheduler(const Call& call) { return static_cast<int>(blockIdx.x) == call.roster.scheduler(); }
/// The first blocks, so many, have consumers who need the stages first: to make lists, or m-blocks.
__device__ inline int num_lenders(const Call& call) { return call.roster.scheduler() + 1; }
__device__ inline bool lends_stages(const Call& call) { return static_cast<int>(blockIdx.x) < num_lenders(call); }
/// Of a call that opens, see Opening: every block but those has a given ticket (BlockMemory::ticket),
/// counted from the epoch's first.
__device__ inline bool has_given_ticket(const Call& call) { return call.given_tickets > 0 && !lends_stages(call); }
/// Where a call has fewer up tasks than blocks, tickets go round the GPCs: H100 and H200 fill one after another with blocks that
/// follow each other, and what a full one can read its multiprocessors would share, while others read nothing.
__device__ inline std::uint32_t given_ticket(const Call& call) {
  constexpr std::uint32_t kApart = 16;  // multiprocessors of a GPC, about
  const Geometry& g = call.geometry();
  const std::uint32_t block = blockIdx.x - static_cast<unsigned>(num_lenders(call));
  const std::int64_t most_blocks = min(call.num_tokens * g.top_k, std::int64_t{g.num_local_experts});  // m-blocks
  if (most_blocks * g.num_up_tiles() > call.given_tickets) return block;
  const std::uint32_t round = block % kApart;  // those before it have a block each in every GPC, or one more
  return call.given_tickets / kApart * round + min(round, call.given_tickets % kApart) + block / kApart;
}

/// All of the block's dynamic shared memory.
__device__ inline BlockMemory& block_memory() { return *reinterpret_cast<BlockMemory*>(block_shared_memory()); }

/// Between looks of consumers without a task at what has not come.
inline constexpr unsigned kLookPauseNs = 50;

/// All consumers of the block have come here.
__device__ inline void await_consumers() { named_barrier<3, kConsumerThreads>(); }
/// The same; whether all of their threads say yes, or any.
__device__ inline bool all_consumers(bool mine) { return named_barrier_all<3, kConsumerThreads>(mine); }
__device__ inline bool any_consumer(bool mine) { return !all_consumers(!mine); }
/// Of sums of the consumer warps, [kConsumerWarps], those of warps before `warp`.
__device__ inline std::uint32_t sum_before(const std::uint32_t* sums, int warp) {
  std::uint32_t before = 0;
#pragma unroll
  for (int other = 0; other < kConsumerWarps; ++other) before += other < warp ? sums[other] : 0;
  return before;
}
/// Over all consumers, `thread` of them. `sums`: shared, [kConsumerWarps], not written again before their next barrier.
__device__ inline Scan scan_consumers(std::uint32_t mine, std::uint32_t* sums, int thread) {
  const Scan scan = WarpGroup::scan(mine);
  if (WarpGroup::leader()) sums[thread / 32] = scan.total;
  await_consumers();
  return {sum_before(sums, thread / 32) + scan.before, sum_before(sums, kConsumerWarps)};
}

/// run(std::integral_constant<int, n>{}), n being the rows that a decode tile of `num_rows` multiplies; kDeepColumns are more than
/// a stage holds.
template <class Run>
__device__ __forceinline__ void with_decode_rows(std::uint32_t num_rows, const Run& run) {
  if (num_rows > kDecodeRows) {
    run(std::integral_constant<int, kMostRows>{});
  } else if (num_rows > static_cast<std::uint32_t>(kDeepRows)) {
    run(std::integral_constant<int, kDecodeRows>{});
  } else if (num_rows > 32) {
    run(std::integral_constant<int, kDeepColumns>{});
  } else if (num_rows > 16) {
    run(std::integral_constant<int, 32>{});
  } else {
    run(std::integral_constant<int, 16>{});
  }
}

/// See kDeepRows.
__device__ inline bool is_deep(const TaskSlot& slot) {
  return slot.decode && slot.num_rows <= static_cast<std::uint32_t>(kDeepRows);
}

/// Whether a task's product from `tile` on is of two tiles. An up tile of many rows that has no second is multiplied as if it had:
/// what is behind it is not stored.
__device__ inline bool is_wide(const TaskSlot& slot, int tile) {
  return (slot.task.kind == TaskKind::up && !is_deep(slot)) ||
         tile + kTilesAtOnce <= static_cast<int>(slot.task.tile) + slot.task.num_tiles;
}

/// Whether it is of four.
__device__ inline bool is_quad(const TaskSlot& slot, int tile) {
  return slot.quads && tile + kQuadTiles <= static_cast<int>(slot.task.tile) + slot.task.num_tiles;
}
/// The tile after a product that begins with `tile`.
__device__ inline int tile_behind(const TaskSlot& slot, int tile) {
  return tile + (is_quad(slot, tile) ? kQuadTiles : kTilesAtOnce);
}

/// Calls run(tile) for every product of an up or down task; for loaders, as consumers keep the tile elsewhere: Consumer::tile().
/// Its end is asked for again each time, as loaders have few registers, too.
template <class Run>
__device__ __forceinline__ void for_each_product(const TaskSlot& slot, const Run& run) {
  const auto end = [&] { return static_cast<int>(slot.task.tile) + slot.task.num_tiles; };
  for (int tile = static_cast<int>(slot.task.tile); tile < end(); tile = tile_behind(slot, tile)) run(tile);
}

/// Steps of k of a task.
__device__ inline int num_steps(const Call& call, const Task& task) {
  const int k = task.kind == TaskKind::up ? call.geometry().hidden : call.geometry().intermediate;
  return (k + kStageElements - 1) / kStageElements;
}
/// Stages of a deep tile.
__device__ inline int num_deep_stages(const Call& call, const Task& task) {
  return (num_steps(call, task) + kDeepSteps - 1) / kDeepSteps;
}
/// Stages of half a tile.
__device__ inline int num_half_stages(const Call& call, const Task& task) {
  return (num_steps(call, task) + kHalfSteps - 1) / kHalfSteps;
}

/// First column of up tile `tile`, or of the half of it that the task is of.
__device__ inline int first_up_column(const Geometry& g, const Task& task, int tile) {
  return tile * g.tile.up_columns + (task.half == 2 ? g.tile.up_columns / 2 : 0);
}

}  // namespace flashmoe::cuda_backend::hopper
