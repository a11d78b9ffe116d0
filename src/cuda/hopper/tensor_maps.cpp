#include "cuda/hopper/tensor_maps.hpp"

#include <cstdint>

#include "cuda/driver.hpp"
#include "cuda/hopper/tile_shape.hpp"

namespace flashmoe::cuda_backend::hopper {

CUtensorMap make_tensor_map(DType dtype, const void* data, std::int64_t rows, std::int64_t columns, int box_rows) {
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(columns) * 2};
  const cuuint32_t box[] = {kStageElements, static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t element_strides[] = {1, 1};
  CUtensorMap map;
  check_driver(driver().tensor_map_encode_tiled(
                   &map, dtype == DType::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 2,
                   const_cast<void*>(data), sizes, strides, box, element_strides, CU_TENSOR_MAP_INTERLEAVE_NONE,
                   CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
               "cuTensorMapEncodeTiled");
  return map;
}

TensorMaps make_tensor_maps(const Problem& problem, const Geometry& geometry, const WeightsView& weights,
                            const void* intermediate) {
  const std::int64_t experts = geometry.num_local_experts;
  return {.up = make_tensor_map(problem.dtype, weights.up, experts * problem.up_columns(), geometry.hidden,
                                kTileColumns / 2),
          .down = make_tensor_map(problem.dtype, weights.down, experts * geometry.hidden, geometry.intermediate, kTileColumns),
          .narrow_down = make_tensor_map(problem.dtype, weights.down, experts * geometry.hidden, geometry.intermediate,
                                         kDownColumns),
          .intermediate = make_tensor_map(problem.dtype, intermediate, std::int64_t{geometry.num_m_blocks} * geometry.tile.most_rows(),
                                          geometry.intermediate, kTileRows)};
}

}  // namespace flashmoe::cuda_backend::hopper
