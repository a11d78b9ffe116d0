#include "io/hidden_states.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <optional>
#include <span>

#include "core/printable.hpp"
#include "flashmoe/error.hpp"
#include "io/convert_elements.hpp"
#include "io/npy.hpp"
#include "io/safetensors.hpp"
#include "io/safetensors_types.hpp"
#include "io/safetensors_writer.hpp"

namespace flashmoe {
namespace {

constexpr std::string_view kUsualName = "hidden_states";

enum class Format { safetensors, npy };

Format format_of(const std::filesystem::path& path) {
  if (path.extension() == ".safetensors") return Format::safetensors;
  if (path.extension() == ".npy") return Format::npy;
  throw InvalidArgument(
      fmt::format("{} must end in .safetensors or .npy: rename it or choose one of the two", path.string()));
}

/// Checks the shape and converts.
HiddenStates convert(std::string_view what, std::optional<DType> stored, std::string_view stored_name,
                     const std::vector<std::int64_t>& shape, const std::byte* data, int hidden, DType dtype) {
  if (!stored) {
    throw InvalidArgument(fmt::format("{} must be BF16, F16, F32 or F64, not {}: convert it", what, stored_name));
  }
  if (shape.size() < 2 || shape.size() > 3 || shape.back() != hidden) {
    throw InvalidArgument(
        fmt::format("{} must have shape [tokens, {}] or [batch, sequence, {}], not {}: check that it is of "
                    "this model",
                    what, hidden, hidden, shape));
  }
  HiddenStates states;
  states.num_tokens = shape[0] * (shape.size() == 3 ? shape[1] : 1);
  states.rows.resize(static_cast<std::size_t>(states.num_tokens * hidden) * dtype_bytes(dtype));
  convert_elements(*stored, data, states.num_tokens * hidden, dtype, states.rows.data());
  return states;
}

HiddenStates read_safetensors(const std::filesystem::path& path, int hidden, DType dtype, std::string_view name) {
  const SafetensorsFile file(path);
  if (file.tensors().empty())
    throw InvalidArgument(fmt::format("{} must hold a tensor, and holds none: write it again", path.string()));
  const bool alone = file.tensors().size() == 1;
  const StoredTensor* tensor = name.empty() && alone ? &file.tensors().front()
                                                     : file.find(name.empty() ? kUsualName : name);
  if (!tensor) {
    throw InvalidArgument(
        fmt::format("{} must hold tensor {}, and holds {}: name one of them", path.string(),
                    name.empty() ? kUsualName : name,
                    printable(file.tensors().front().name) + (file.tensors().size() > 1 ? ", ..." : "")));
  }
  const std::string what = fmt::format("tensor {} of {}", printable(tensor->name), path.string());
  return convert(what, stored_dtype(tensor->type), tensor->type, tensor->shape, tensor->data.data(), hidden, dtype);
}

std::optional<DType> dtype_of(NpyType type) {
  switch (type) {
    case NpyType::bits16: return DType::bf16;
    case NpyType::float16: return DType::fp16;
    case NpyType::float32: return DType::fp32;
    case NpyType::float64: return DType::fp64;
    case NpyType::int32:
    case NpyType::int64: return std::nullopt;
  }
  return std::nullopt;
}

NpyType npy_type(DType dtype) {
  switch (dtype) {
    case DType::bf16: return NpyType::bits16;
    case DType::fp16: return NpyType::float16;
    case DType::tf32:
    case DType::fp32: return NpyType::float32;
    case DType::fp64: return NpyType::float64;
  }
  return NpyType::float64;
}

}  // namespace

HiddenStates read_hidden_states(const std::filesystem::path& path, int hidden, DType dtype, std::string_view tensor) {
  if (format_of(path) == Format::safetensors) return read_safetensors(path, hidden, dtype, tensor);
  const NpyArray array = read_npy(path);
  return convert(path.string(), dtype_of(array.type), to_string(array.type), array.shape, array.data.data(), hidden,
                 dtype);
}

void write_rows(const std::filesystem::path& path, std::string_view tensor, DType dtype, ConstRows rows, int hidden) {
  const std::vector<std::int64_t> shape = {rows.num_rows, hidden};
  const std::span data(static_cast<const std::byte*>(rows.data),
                       static_cast<std::size_t>(rows.num_rows * hidden) * dtype_bytes(dtype));
  if (format_of(path) == Format::safetensors) {
    write_safetensors(
        path, {{.name = std::string(tensor), .type = std::string(stored_type(dtype)), .shape = shape, .data = data}});
  } else {
    write_npy(path, npy_type(dtype), shape, data);
  }
}

}  // namespace flashmoe
