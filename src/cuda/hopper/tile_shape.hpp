// Tile, threads and pipeline of the Hopper prefill engine, for host and device code.
#pragma once

#include "core/geometry.hpp"
#include "cuda/trace_rows.hpp"

namespace flashmoe::cuda_backend::hopper {

// A task multiplies 128 rows by 256 rows of weights, 64 elements of k at a time: 64 x 256 a consumer warpgroup. Probes:
// 128 x 256 with m64n256k16 634 TFLOP/s, 256 x 128 579, 128 x 128 a warpgroup 460; stages 3 / 4: 613 / 657.
inline constexpr int kTileRows = 128;
inline constexpr int kTileColumns = 256;
/// The last rows of an expert go with the m-block before them if they are no more than these: alone they would load its
/// weights once more (docs/adr/0014-last-rows.md).
inline constexpr int kExtraRows = 16;
inline constexpr int kStageElements = 64;  ///< of k
inline constexpr int kStages = 4;
inline constexpr int kMostRows = kTileRows + kExtraRows;
inline constexpr int kStageRowBytes = kStageElements * 2;
inline constexpr int kStageTokenBytes = kMostRows * kStageRowBytes;
inline constexpr int kStageWeightBytes = kTileColumns * kStageRowBytes;
inline constexpr int kStageBytes = kStageTokenBytes + kStageWeightBytes;
/// A foreman needs about 15 us to hand out a task and to follow it up beside others; tiles over fewer elements of k take
/// less (ADR 10).
inline constexpr int kTaskElements = 2048;

/// Most rows of an expert whose tasks run as decode tiles: weights as wgmma's rows, tokens as its columns. Those of more
/// than kTileRows do, too, whatever this says (docs/adr/0008-decode-tiles.md, 0014-last-rows.md).
inline constexpr int kDecodeRows = 96;

/// Tiles are half a product wide. Where processors would run out of tasks, at the end of a call or in one of few tokens, they
/// are tasks of their own (docs/adr/0021-few-tokens.md).
inline constexpr int kTilesAtOnce = 2;
inline constexpr int kDownColumns = kTileColumns / kTilesAtOnce;

/// Stages before a task ends when its block takes the next one: what a foreman needs to find it and its rows. Sooner, long
/// tasks would wait for one block while others have nothing to do.
inline constexpr int kStagesAhead = 24;

/// Decode tiles of so few rows are deep: a stage has two steps of k of one tile, as weights stream faster by 256 bytes of a row
/// than by 128 (docs/adr/0026-weights-by-256-bytes.md); two tiles of a product take turns. What the last stage of a tile has
/// beyond k is zeros. The second step's rows are behind kDeepRows rows, its weights in a stage's second half. So many rows have
/// room twice where a stage has kMostRows; the largest deep product has kDeepColumns, the last of which multiply what lies behind.
inline constexpr int kDeepRows = 72;
inline constexpr int kDeepColumns = 80;
inline constexpr int kDeepSteps = 2;
static_assert(kDeepSteps * kDeepRows <= kMostRows);

/// Up tasks of half a tile, where a call has so few tiles that half of the processors would have none, or where one of several
/// rounds ends: 64 weight rows, which one warpgroup multiplies, kHalfSteps steps of k a stage. A step's rows are behind
/// kHalfStepRows rows, its weights behind a quarter of a stage's. One warpgroup's wgmma of 16 columns read weights out of shared
/// memory as fast as those of two.
inline constexpr int kHalfRows = 16;
inline constexpr int kHalfSteps = 4;
inline constexpr int kHalfStepRows = 32;
static_assert(kHalfSteps * kHalfStepRows <= kMostRows && kHalfRows <= kHalfStepRows && kHalfStepRows % 8 == 0);

/// Down tasks of so few rows, in lines, multiply four tiles at once where they have them, whose stages take turns: of short k an
/// epilogue takes longer than what it follows (decision 27).
inline constexpr int kQuadRows = 8;
inline constexpr int kQuadTiles = 4;

/// Most rows of an m-block whose intermediate is in tagged packets (tagged_rows.cuh), of which each of two loader warps' lanes
/// has one a stage in every other row.
inline constexpr int kTaggedRows = 4;

/// Rows that experts have on average from which on blocks take tasks in pairs (block_pair.cuh): with fewer most experts have one
/// m-block, whose weights nobody shares (docs/adr/0020-shared-weights.md).
inline constexpr int kPairRows = 256;

/// Gated, half of a task's columns are gate columns.
constexpr TileShape tile_shape(bool gated) {
  return {.rows = kTileRows,
          .up_columns = kTileColumns / kTilesAtOnce / (gated ? 2 : 1),
          .down_columns = kDownColumns,
          .up_tiles_at_once = kTilesAtOnce,
          .down_tiles_at_once = kTilesAtOnce,
          .task_elements = kTaskElements,
          .pair_rows = kPairRows,
          .narrow_rows = kDeepRows,
          .half_rows = kHalfRows,
          .tagged_rows = gated ? kTaggedRows : 0,
          .extra_rows = kExtraRows};
}

// Warps of a block, in this order: foreman, service, loaders, consumers. (Probes, gathering with 1 / 2 / 4 loader
// warps: 461 / 620 / 645 TFLOP/s; the fourth warpgroup that four would need costs more, see wgmma().)
inline constexpr int kForemen = 1;
inline constexpr int kServiceWarps = 1;
inline constexpr int kLoaderWarps = 2;
inline constexpr int kConsumerWarps = 8;  ///< two warpgroups
inline constexpr int kFirstLoader = kForemen + kServiceWarps;
inline constexpr int kFirstConsumer = kFirstLoader + kLoaderWarps;
inline constexpr int kConsumerThreads = kConsumerWarps * 32;
inline constexpr int kBlockThreads = (kForemen + kServiceWarps + kLoaderWarps + kConsumerWarps) * 32;
inline constexpr TraceRows kTraceRows{.processor_rows = 4, .service_warps = kServiceWarps, .helpers = kConsumerWarps};
/// Subscriber, scheduler and a dispatcher want a service warp each.
inline constexpr int kFewestBlocks = 3;

/// Staging area of one consumer warp: 16 rows of 64 columns, or 4 rows of a whole tile.
inline constexpr int kStagingBytes = 2048;

/// Most routes of a rank that the consumers of a subscriber's block list (list_maker.cuh); with more planners are as fast.
inline constexpr int kMostListedRoutes = 16384;
/// The same with so many experts a rank; 0: the operand stages have no room for what they need. Of several ranks half as many: more
/// has not been timed there, where rows land while lists are made.
constexpr int listed_routes(int num_ranks, int num_local_experts) {
  const int words = 2 * kMostListedRoutes + kConsumerWarps * (2 + 2 * num_local_experts);
  if (4 * words > kStages * kStageBytes) return 0;
  return num_ranks > 1 ? kMostListedRoutes / 2 : kMostListedRoutes;
}

// Registers a thread, of the first warpgroup and of the consumers. At launch it is 168.
inline constexpr int kServiceRegisters = 136;
inline constexpr int kConsumerRegisters = 184;
static_assert(4 * kServiceRegisters + kConsumerWarps * kConsumerRegisters <= kBlockThreads / 32 * 168);

}  // namespace flashmoe::cuda_backend::hopper
