// Tensor maps: how bulk copies address a matrix. Those of a layer's weights and intermediate are made once a layer.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "core/geometry.hpp"
#include "cuda/hopper/boxes.hpp"
#include "flashmoe/problem.hpp"
#include "flashmoe/types.hpp"
#include "flashmoe/views.hpp"

namespace flashmoe::cuda_backend::hopper {

/// See boxed_matrix(); of bf16 or fp16.
CUtensorMap make_tensor_map(DType dtype, const void* data, std::int64_t rows, std::int64_t columns, int box_rows);

/// Kernel parameter.
using TensorMaps = LayerBoxes<CUtensorMap>;

/// `intermediate`: the rank's ring, device memory. Throws InvalidArgument where weights are not aligned to 16 bytes.
TensorMaps make_tensor_maps(const Problem& problem, const Geometry& geometry, const WeightsView& weights,
                            const void* intermediate);

}  // namespace flashmoe::cuda_backend::hopper
