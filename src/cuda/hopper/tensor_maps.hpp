// Tensor maps of the weights and of the intermediate: how bulk copies address them. Made once a layer.
#pragma once

#include <cuda.h>

#include "core/geometry.hpp"
#include "flashmoe/problem.hpp"
#include "flashmoe/views.hpp"

namespace flashmoe::cuda_backend::hopper {

/// Kernel parameter. Boxes are 64 elements of k wide; what they overhang reads as zero.
struct TensorMaps {
  CUtensorMap up;            // [num_local_experts * up_columns][hidden], boxes of 128 rows
  CUtensorMap down;          // [num_local_experts * hidden][intermediate], boxes of 256 rows
  CUtensorMap intermediate;  // [num_m_blocks * tile.rows][intermediate], boxes of an m-block
};

/// `intermediate`: the rank's ring, device memory. Throws InvalidArgument where weights are not aligned to 16 bytes.
TensorMaps make_tensor_maps(const Problem& problem, const Geometry& geometry, const WeightsView& weights,
                            const void* intermediate);

}  // namespace flashmoe::cuda_backend::hopper
