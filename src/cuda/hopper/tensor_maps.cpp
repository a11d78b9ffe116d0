#include "cuda/hopper/tensor_maps.hpp"

#include "cuda/driver.hpp"

namespace flashmoe::cuda_backend::hopper {

namespace {

CUtensorMap encode(DType dtype, const BoxedTensor& tensor) {
  static_assert(sizeof(cuuint64_t) == sizeof(std::uint64_t) && sizeof(cuuint32_t) == sizeof(std::uint32_t));
  constexpr cuuint32_t kElementStrides[] = {1, 1, 1, 1};
  const auto sizes = std::array<cuuint64_t, 4>{tensor.sizes[0], tensor.sizes[1], tensor.sizes[2], tensor.sizes[3]};
  const auto strides = std::array<cuuint64_t, 3>{tensor.strides[0], tensor.strides[1], tensor.strides[2]};
  CUtensorMap map;
  check_driver(driver().tensor_map_encode_tiled(
                   &map, dtype == DType::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
                   static_cast<cuuint32_t>(tensor.dimensions), const_cast<void*>(tensor.data), sizes.data(),
                   strides.data(), tensor.box.data(), kElementStrides, CU_TENSOR_MAP_INTERLEAVE_NONE,
                   CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
               "cuTensorMapEncodeTiled");
  return map;
}

}  // namespace

CUtensorMap make_tensor_map(DType dtype, const void* data, std::int64_t rows, std::int64_t columns, int box_rows) {
  return encode(dtype, boxed_matrix(data, rows, columns, box_rows));
}

TensorMaps make_tensor_maps(const Problem& problem, const Geometry& geometry, const WeightsView& weights,
                            const void* intermediate) {
  const LayerBoxes<BoxedTensor> boxes = layer_boxes(problem, geometry, weights, intermediate);
  return {.up = encode(problem.dtype, boxes.up),
          .deep_up = encode(problem.dtype, boxes.deep_up),
          .half_up = encode(problem.dtype, boxes.half_up),
          .down = encode(problem.dtype, boxes.down),
          .narrow_down = encode(problem.dtype, boxes.narrow_down),
          .intermediate = encode(problem.dtype, boxes.intermediate)};
}

}  // namespace flashmoe::cuda_backend::hopper
