// Where an expert's matrices lie in a checkpoint's files, and how they become the engine's.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "flashmoe/model_config.hpp"
#include "io/checkpoint_files.hpp"
#include "io/checkpoint_names.hpp"

namespace flashmoe {

/// A matrix [rows][columns] in a file; element (r, c) is `r * row_stride + c * column_stride` elements after `data`.
struct StoredMatrix {
  DType dtype = DType::fp32;
  const std::byte* data = nullptr;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t row_stride = 0;
  std::int64_t column_stride = 0;

  bool contiguous() const { return column_stride == 1 && row_stride == columns; }
  std::size_t num_elements() const { return static_cast<std::size_t>(rows * columns); }
};

/// One expert's matrices, as rows of the engine's layout.
struct StoredExpert {
  std::array<StoredMatrix, 2> gate_up;  // [intermediate][hidden] each
  StoredMatrix down;                    // [hidden][intermediate]
};

/// All of a layer's; biases are read already.
struct StoredExperts {
  std::vector<StoredExpert> experts;
  std::vector<float> up_bias;    // [num_experts][2 * intermediate], gate first, or empty
  std::vector<float> down_bias;  // [num_experts][hidden] or empty
};

/// The tensor `name`, which must be of a floating-point type the engines have and of that shape. Throws InvalidArgument
/// as CheckpointFiles::tensor(), and for another type or shape.
const StoredTensor& require_tensor(CheckpointFiles& files, const std::string& name,
                                   const std::vector<std::int64_t>& shape);

/// All elements of that tensor as fp32.
std::vector<float> require_floats(CheckpointFiles& files, const std::string& name,
                                  const std::vector<std::int64_t>& shape);

/// Finds and checks every tensor of the layer's experts.
StoredExperts find_experts(CheckpointFiles& files, const LayerNames& names, const ModelConfig& config);

/// The matrices below each other as they lie in the file, where they do so in the engine's layout and type; else null.
const void* view_of(std::span<const StoredMatrix> matrices, DType dtype);

/// The same, copied and converted: out holds the elements of all of them.
void copy_of(std::span<const StoredMatrix> matrices, DType dtype, void* out);

}  // namespace flashmoe
