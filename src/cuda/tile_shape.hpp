// Tile of the portable engine, for host and device code.
#pragma once

namespace flashmoe::cuda_backend {

inline constexpr int kTileRows = 64;
inline constexpr int kTileColumns = 128;

}  // namespace flashmoe::cuda_backend
