// Tensor maps: how bulk copies address a matrix. Those of a layer's weights and intermediate are made once a layer.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "core/geometry.hpp"
#include "flashmoe/problem.hpp"
#include "flashmoe/types.hpp"
#include "flashmoe/views.hpp"

namespace flashmoe::cuda_backend::hopper {

/// A row-major matrix of bf16 or fp16 in global memory, aligned to 16 bytes, rows a multiple of 16 bytes. Boxes are 64
/// elements wide and `box_rows` tall, in shared memory 128 bytes a row, swizzled; what they overhang reads as zero.
CUtensorMap make_tensor_map(DType dtype, const void* data, std::int64_t rows, std::int64_t columns, int box_rows);

/// Kernel parameter. Boxes are 64 elements of k wide; what they overhang reads as zero. All maps of weights have four dimensions,
/// so that one instruction loads them.
struct TensorMaps {
  CUtensorMap up;           // [1][1][num_local_experts * up_columns][hidden], boxes of 128 rows
  /// [eights of all rows][gate, up][8][hidden], boxes of 128 rows: gate and up rows of the same units by eights, so that a thread
  /// has both in its accumulators. Plain experts: [eights][1][8][hidden].
  CUtensorMap deep_up;
  CUtensorMap half_up;      // the same, boxes of 64 rows
  CUtensorMap down;         // [1][1][num_local_experts * hidden][intermediate], boxes of 256 rows
  CUtensorMap narrow_down;  // the same, boxes of 128 rows
  CUtensorMap intermediate;  // [num_m_blocks * tile.most_rows()][intermediate], boxes of an m-block's first tile.rows
};

/// `intermediate`: the rank's ring, device memory. Throws InvalidArgument where weights are not aligned to 16 bytes.
TensorMaps make_tensor_maps(const Problem& problem, const Geometry& geometry, const WeightsView& weights,
                            const void* intermediate);

}  // namespace flashmoe::cuda_backend::hopper
