// How the Hopper router lies over the machine: plain values, for host and device.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace flashmoe::cuda_backend::hopper {

inline constexpr int kRouterColumns = 128;  ///< experts of a block
inline constexpr int kRouterParts = 8;      ///< of hidden, summed as a binary tree
inline constexpr int kRouterConsumers = 8;  ///< warps that multiply: two warpgroups of 64 experts each
inline constexpr int kRouterThreads = 32 * (kRouterConsumers + 4);  ///< the loader is one, its warpgroup makes room
inline constexpr int kTallTile = 128;       ///< tokens
inline constexpr int kWidestCluster = 16;   ///< blocks

/// Clusters of 1, 2, 4, 8 and 16 blocks that run at once; 0 where the GPU places none.
struct ClusterRoom {
  std::array<int, 5> num_clusters{};

  constexpr int of(int blocks) const {
    return num_clusters[static_cast<std::size_t>(std::countr_zero(static_cast<unsigned>(blocks)))];
  }
};

/// Experts that one copy brings. Rows that do not exist cost a copy as much as those that do, and more where many blocks copy
/// the same few: 8 experts by boxes of 128 took mixtral-8x7b three times as long as by one of 8 (4,096 tokens, H100).
constexpr int gate_box(int num_experts) {
  if (num_experts % kRouterColumns == 0) return kRouterColumns;
  return num_experts <= 32 ? (num_experts + 7) / 8 * 8 : 32;
}

/// A cluster has one tile of tokens; its block of rank r has column r % columns, and of hidden the split r / columns.
/// Both are powers of two.
struct RouterGrid {
  int rows = 0;     ///< tokens of a tile: 16, 64 or kTallTile
  int columns = 0;  ///< blocks that share the experts; the last ones may have none
  int splits = 0;   ///< blocks that share the parts of hidden: 8, 4, 2, or 1 for tall tiles
  std::int64_t num_tiles = 0;

  constexpr int cluster() const { return columns * splits; }
  constexpr bool operator==(const RouterGrid&) const = default;
};

/// Blocks that all run at once, where there is such a grid, and that read the least each; else whole tall tiles, which read
/// the gate the fewest times. splits is 0 where the GPU has no room for the clusters.
constexpr RouterGrid router_grid(std::int64_t max_tokens, int num_experts, const ClusterRoom& room) {
  RouterGrid grid;
  grid.columns = static_cast<int>(
      std::bit_ceil(static_cast<unsigned>((num_experts + kRouterColumns - 1) / kRouterColumns)));
  for (const int splits : {8, 4, 2, 1}) {
    for (const int rows : {16, 64, kTallTile}) {
      if (splits == 1 && rows != kTallTile) continue;
      grid.rows = rows;
      grid.splits = splits;
      grid.num_tiles = (max_tokens + rows - 1) / rows;
      if (grid.cluster() <= kWidestCluster && grid.num_tiles <= room.of(grid.cluster())) return grid;
    }
  }
  if (room.of(grid.cluster()) == 0) grid.splits = 0;
  return grid;
}

}  // namespace flashmoe::cuda_backend::hopper
