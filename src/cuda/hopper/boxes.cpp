#include "cuda/hopper/boxes.hpp"

#include "cuda/hopper/tile_shape.hpp"

namespace flashmoe::cuda_backend::hopper {

namespace {

BoxedTensor boxed_weights(const void* data, std::int64_t rows, std::int64_t columns, int box_rows) {
  const auto row_bytes = static_cast<std::uint64_t>(columns) * 2;
  return {.data = data,
          .dimensions = 4,
          .sizes = {static_cast<std::uint64_t>(columns), static_cast<std::uint64_t>(rows), 1, 1},
          .strides = {row_bytes, row_bytes, row_bytes},
          .box = {kStageElements, static_cast<std::uint32_t>(box_rows), 1, 1}};
}

/// Boxes of gate and up rows of `units_of_box` units.
BoxedTensor boxed_deep_up(const Problem& problem, const Geometry& geometry, const void* weights, int units_of_box) {
  const auto row_bytes = static_cast<std::uint64_t>(geometry.hidden) * 2;
  const auto units = static_cast<std::uint64_t>(geometry.intermediate);
  const std::uint32_t halves = problem.gated ? 2 : 1;
  const auto rows = static_cast<std::uint64_t>(geometry.num_local_experts) * halves * units;
  const std::uint64_t behind = (halves - 1) * units;  // the last eight of gate rows has its up rows behind it
  return {.data = weights,
          .dimensions = 4,
          .sizes = {static_cast<std::uint64_t>(geometry.hidden), 8, halves, (rows - behind) / 8},
          .strides = {row_bytes, units * row_bytes, 8 * row_bytes},
          .box = {kStageElements, 8, halves, static_cast<std::uint32_t>(units_of_box / 8)}};
}

}  // namespace

BoxedTensor boxed_matrix(const void* data, std::int64_t rows, std::int64_t columns, int box_rows) {
  return {.data = data,
          .dimensions = 2,
          .sizes = {static_cast<std::uint64_t>(columns), static_cast<std::uint64_t>(rows)},
          .strides = {static_cast<std::uint64_t>(columns) * 2},
          .box = {kStageElements, static_cast<std::uint32_t>(box_rows)}};
}

LayerBoxes<BoxedTensor> layer_boxes(const Problem& problem, const Geometry& geometry, const WeightsView& weights,
                                    const void* intermediate) {
  const std::int64_t experts = geometry.num_local_experts;
  const std::int64_t up_rows = experts * problem.up_columns();
  const std::int64_t down_rows = experts * geometry.hidden;
  return {.up = boxed_weights(weights.up, up_rows, geometry.hidden, kTileColumns / 2),
          .deep_up = boxed_deep_up(problem, geometry, weights.up, geometry.tile.up_columns),
          .half_up = boxed_deep_up(problem, geometry, weights.up, geometry.tile.up_columns / 2),
          .down = boxed_weights(weights.down, down_rows, geometry.intermediate, kTileColumns),
          .narrow_down = boxed_weights(weights.down, down_rows, geometry.intermediate, kDownColumns),
          .intermediate = boxed_matrix(intermediate, std::int64_t{geometry.num_m_blocks} * geometry.tile.most_rows(),
                                       geometry.intermediate, kTileRows)};
}

}  // namespace flashmoe::cuda_backend::hopper
