#include "io/checkpoint_experts.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "flashmoe/error.hpp"
#include "io/convert_elements.hpp"
#include "io/safetensors_types.hpp"

namespace flashmoe {
namespace {

using Shape = std::vector<std::int64_t>;

/// `rows` rows of a row-major matrix from element `first` of the tensor on.
StoredMatrix rows_of(const StoredTensor& tensor, std::int64_t first, std::int64_t rows, std::int64_t columns) {
  const DType dtype = *stored_dtype(tensor.type);
  return {.dtype = dtype,
          .data = tensor.data.data() + static_cast<std::size_t>(first) * dtype_bytes(dtype),
          .rows = rows,
          .columns = columns,
          .row_stride = columns,
          .column_stride = 1};
}

/// `rows` columns, `step` apart, of a row-major matrix with rows of `width`, as rows: a transposed view.
StoredMatrix columns_of(const StoredTensor& tensor, std::int64_t first, std::int64_t rows, std::int64_t columns,
                        std::int64_t width, std::int64_t step = 1) {
  StoredMatrix matrix = rows_of(tensor, first, rows, columns);
  matrix.row_stride = step;
  matrix.column_stride = width;
  return matrix;
}

std::vector<StoredExpert> find_separate(CheckpointFiles& files, const LayerNames& names, const ModelConfig& config) {
  const std::int64_t hidden = config.hidden;
  const std::int64_t inner = config.intermediate;
  std::vector<StoredExpert> experts(static_cast<std::size_t>(config.num_experts));
  for (int e = 0; e < config.num_experts; ++e) {
    const auto whole = [&](std::string_view part, std::int64_t rows, std::int64_t columns) {
      return rows_of(require_tensor(files, names.of_expert(e, part), {rows, columns}), 0, rows, columns);
    };
    experts[static_cast<std::size_t>(e)] = {
        .gate_up = {whole(names.gate_part, inner, hidden), whole(names.up_part, inner, hidden)},
        .down = whole(names.down_part, hidden, inner)};
  }
  return experts;
}

std::vector<StoredExpert> find_fused(CheckpointFiles& files, const LayerNames& names, const ModelConfig& config) {
  const std::int64_t num_experts = config.num_experts;
  const std::int64_t hidden = config.hidden;
  const std::int64_t inner = config.intermediate;
  const bool by_rows = names.form == ExpertForm::fused;
  const StoredTensor& gate_up = require_tensor(
      files, names.gate_up, by_rows ? Shape{num_experts, 2 * inner, hidden} : Shape{num_experts, hidden, 2 * inner});
  const StoredTensor& down = require_tensor(
      files, names.down, by_rows ? Shape{num_experts, hidden, inner} : Shape{num_experts, inner, hidden});

  std::vector<StoredExpert> experts;
  for (std::int64_t e = 0; e < num_experts; ++e) {
    const std::int64_t first_gate = e * 2 * inner * hidden;
    const std::int64_t first_down = e * inner * hidden;
    if (by_rows) {
      experts.push_back({.gate_up = {rows_of(gate_up, first_gate, inner, hidden),
                                     rows_of(gate_up, first_gate + inner * hidden, inner, hidden)},
                         .down = rows_of(down, first_down, hidden, inner)});
      continue;
    }
    const bool interleaved = names.form == ExpertForm::interleaved;
    const std::int64_t first_up = first_gate + (interleaved ? 1 : inner);
    const std::int64_t step = interleaved ? 2 : 1;
    experts.push_back({.gate_up = {columns_of(gate_up, first_gate, inner, hidden, 2 * inner, step),
                                   columns_of(gate_up, first_up, inner, hidden, 2 * inner, step)},
                       .down = columns_of(down, first_down, hidden, inner, hidden)});
  }
  return experts;
}

/// [num_experts][2 * inner], each expert's values for gate and up in turns, put apart.
std::vector<float> put_apart(const std::vector<float>& values, std::size_t inner) {
  std::vector<float> apart(values.size());
  for (std::size_t first = 0; first < values.size(); first += 2 * inner) {
    for (std::size_t i = 0; i < inner; ++i) {
      apart[first + i] = values[first + 2 * i];
      apart[first + inner + i] = values[first + 2 * i + 1];
    }
  }
  return apart;
}

}  // namespace

const StoredTensor& require_tensor(CheckpointFiles& files, const std::string& name, const Shape& shape) {
  const StoredTensor& tensor = files.tensor(name);
  if (!stored_dtype(tensor.type)) {
    throw InvalidArgument(
        fmt::format("tensor {} of {} must be BF16, F16, F32 or F64, not {}: quantised checkpoints cannot "
                    "be loaded, use the unquantised one",
                    name, files.file_of(name).string(), tensor.type));
  }
  if (tensor.shape != shape) {
    throw InvalidArgument(
        fmt::format("tensor {} of {} must have shape {}, as the config.json beside it says, not {}: check "
                    "that both are of one model",
                    name, files.file_of(name).string(), shape, tensor.shape));
  }
  return tensor;
}

std::vector<float> require_floats(CheckpointFiles& files, const std::string& name, const Shape& shape) {
  const StoredTensor& tensor = require_tensor(files, name, shape);
  const DType dtype = *stored_dtype(tensor.type);
  std::vector<float> values(tensor.data.size() / dtype_bytes(dtype));
  convert_elements(dtype, tensor.data.data(), static_cast<std::int64_t>(values.size()), DType::fp32, values.data());
  return values;
}

StoredExperts find_experts(CheckpointFiles& files, const LayerNames& names, const ModelConfig& config) {
  StoredExperts found;
  found.experts =
      names.form == ExpertForm::separate ? find_separate(files, names, config) : find_fused(files, names, config);
  if (config.up_bias) {
    found.up_bias = require_floats(files, names.gate_up + "_bias", {config.num_experts, 2 * config.intermediate});
    if (names.form == ExpertForm::interleaved) {
      found.up_bias = put_apart(found.up_bias, static_cast<std::size_t>(config.intermediate));
    }
  }
  if (config.down_bias) {
    found.down_bias = require_floats(files, names.down + "_bias", {config.num_experts, config.hidden});
  }
  return found;
}

const void* view_of(std::span<const StoredMatrix> matrices, DType dtype) {
  const std::byte* next = matrices.front().data;
  if (reinterpret_cast<std::uintptr_t>(next) % dtype_bytes(dtype) != 0) return nullptr;
  for (const StoredMatrix& matrix : matrices) {
    if (!matrix.contiguous() || !same_storage(matrix.dtype, dtype) || matrix.data != next) return nullptr;
    next += matrix.num_elements() * dtype_bytes(dtype);
  }
  return matrices.front().data;
}

void copy_of(std::span<const StoredMatrix> matrices, DType dtype, void* out) {
  auto* next = static_cast<std::byte*>(out);
  for (const StoredMatrix& matrix : matrices) {
    if (matrix.contiguous()) {
      convert_elements(matrix.dtype, matrix.data, matrix.rows * matrix.columns, dtype, next);
    } else {
      convert_transposed(matrix.dtype, matrix.data, matrix.columns, matrix.rows, matrix.column_stride,
                         matrix.row_stride, dtype, next);
    }
    next += matrix.num_elements() * dtype_bytes(dtype);
  }
}

}  // namespace flashmoe
