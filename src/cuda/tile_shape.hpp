// Tile of the portable engine, for host and device code.
#pragma once

#include "core/geometry.hpp"

namespace flashmoe::cuda_backend {

inline constexpr int kTileRows = 64;
inline constexpr int kTileColumns = 128;

/// Gated, half of a task's columns are gate columns.
constexpr TileShape tile_shape(bool gated) {
  return {.rows = kTileRows, .up_columns = gated ? kTileColumns / 2 : kTileColumns, .down_columns = kTileColumns};
}

}  // namespace flashmoe::cuda_backend
