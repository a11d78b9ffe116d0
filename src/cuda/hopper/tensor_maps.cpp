#include "cuda/hopper/tensor_maps.hpp"

#include <algorithm>
#include <cstdint>

#include "cuda/driver.hpp"
#include "cuda/hopper/tile_shape.hpp"

namespace flashmoe::cuda_backend::hopper {

namespace {

/// A tensor of 16-bit elements; strides, in bytes, begin with the second dimension's.
template <int dimensions>
CUtensorMap encode(DType dtype, const void* data, const cuuint64_t (&sizes)[dimensions],
                   const cuuint64_t (&strides)[dimensions - 1], const cuuint32_t (&box)[dimensions]) {
  cuuint32_t element_strides[dimensions];
  std::fill_n(element_strides, dimensions, 1u);
  CUtensorMap map;
  check_driver(driver().tensor_map_encode_tiled(
                   &map, dtype == DType::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, dimensions,
                   const_cast<void*>(data), sizes, strides, box, element_strides, CU_TENSOR_MAP_INTERLEAVE_NONE,
                   CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
               "cuTensorMapEncodeTiled");
  return map;
}

CUtensorMap make_weight_map(DType dtype, const void* data, std::int64_t rows, std::int64_t columns, int box_rows) {
  const auto row_bytes = static_cast<cuuint64_t>(columns) * 2;
  return encode<4>(dtype, data, {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows), 1, 1},
                   {row_bytes, row_bytes, row_bytes}, {kStageElements, static_cast<cuuint32_t>(box_rows), 1, 1});
}

/// Boxes of gate and up rows of `units_of_box` units.
CUtensorMap make_deep_up_map(const Problem& problem, const Geometry& geometry, const void* weights, int units_of_box) {
  const auto row_bytes = static_cast<cuuint64_t>(geometry.hidden) * 2;
  const auto units = static_cast<cuuint64_t>(geometry.intermediate);
  const cuuint32_t halves = problem.gated ? 2 : 1;
  const auto rows = static_cast<cuuint64_t>(geometry.num_local_experts) * halves * units;
  const cuuint64_t behind = (halves - 1) * units;  // the last eight of gate rows has its up rows behind it
  return encode<4>(problem.dtype, weights, {static_cast<cuuint64_t>(geometry.hidden), 8, halves, (rows - behind) / 8},
                   {row_bytes, units * row_bytes, 8 * row_bytes},
                   {kStageElements, 8, halves, static_cast<cuuint32_t>(units_of_box / 8)});
}

}  // namespace

CUtensorMap make_tensor_map(DType dtype, const void* data, std::int64_t rows, std::int64_t columns, int box_rows) {
  return encode<2>(dtype, data, {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)},
                   {static_cast<cuuint64_t>(columns) * 2}, {kStageElements, static_cast<cuuint32_t>(box_rows)});
}

TensorMaps make_tensor_maps(const Problem& problem, const Geometry& geometry, const WeightsView& weights,
                            const void* intermediate) {
  const std::int64_t experts = geometry.num_local_experts;
  const std::int64_t up_rows = experts * problem.up_columns();
  const std::int64_t down_rows = experts * geometry.hidden;
  return {.up = make_weight_map(problem.dtype, weights.up, up_rows, geometry.hidden, kTileColumns / 2),
          .deep_up = make_deep_up_map(problem, geometry, weights.up, geometry.tile.up_columns),
          .half_up = make_deep_up_map(problem, geometry, weights.up, geometry.tile.up_columns / 2),
          .down = make_weight_map(problem.dtype, weights.down, down_rows, geometry.intermediate, kTileColumns),
          .narrow_down = make_weight_map(problem.dtype, weights.down, down_rows, geometry.intermediate, kDownColumns),
          .intermediate = make_tensor_map(problem.dtype, intermediate,
                                          std::int64_t{geometry.num_m_blocks} * geometry.tile.most_rows(),
                                          geometry.intermediate, kTileRows)};
}

}  // namespace flashmoe::cuda_backend::hopper
