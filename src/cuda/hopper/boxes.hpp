// The tensors that a layer's bulk copies take boxes of: what its tensor maps say (tensor_maps.hpp).
#pragma once

#include <array>
#include <cstdint>

#include "core/geometry.hpp"
#include "flashmoe/problem.hpp"
#include "flashmoe/views.hpp"

namespace flashmoe::cuda_backend::hopper {

/// A tensor of 16-bit elements in global memory, aligned to 16 bytes, and the boxes copied of it: 64 elements wide, in
/// shared memory 128 bytes a row, swizzled; what they overhang reads as zero.
struct BoxedTensor {
  const void* data = nullptr;
  int dimensions = 0;
  std::array<std::uint64_t, 4> sizes{};
  std::array<std::uint64_t, 3> strides{};  ///< in bytes, from the second dimension on; a multiple of 16
  std::array<std::uint32_t, 4> box{};
};

/// A row-major matrix, boxes of `box_rows` rows.
BoxedTensor boxed_matrix(const void* data, std::int64_t rows, std::int64_t columns, int box_rows);

/// Those of weights have four dimensions, so that one instruction loads them.
template <class Map>
struct LayerBoxes {
  Map up;  // [1][1][num_local_experts * up_columns][hidden], boxes of 128 rows
  /// [eights of all rows][gate, up][8][hidden], boxes of 128 rows: gate and up rows of the same units by eights, so
  /// that a thread has both in its accumulators. Plain experts: [eights][1][8][hidden].
  Map deep_up;
  Map half_up;       // the same, boxes of 64 rows
  Map down;          // [1][1][num_local_experts * hidden][intermediate], boxes of 256 rows
  Map narrow_down;   // the same, boxes of 128 rows
  Map intermediate;  // [num_m_blocks * tile.most_rows()][intermediate], boxes of an m-block's first tile.rows
};

/// `intermediate`: the rank's ring.
LayerBoxes<BoxedTensor> layer_boxes(const Problem& problem, const Geometry& geometry, const WeightsView& weights,
                                    const void* intermediate);

}  // namespace flashmoe::cuda_backend::hopper
