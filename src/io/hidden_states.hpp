// Token rows in files: .safetensors, or NumPy's .npy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string_view>
#include <vector>

#include "flashmoe/types.hpp"
#include "flashmoe/views.hpp"

namespace flashmoe {

struct HiddenStates {
  std::int64_t num_tokens = 0;
  std::vector<std::byte> rows;  // [num_tokens][hidden] of the dtype asked for
};

/// Reads [num_tokens][hidden], or [batch][sequence][hidden] as batch * sequence tokens, converted to `dtype`. The
/// file's elements are BF16, F16, F32 or F64; in .npy, 16-bit integers are bf16. `tensor` names the one to read from a
/// .safetensors file; empty: the only one, or of several the one called
/// hidden_states. The path's ending decides the format.
/// Throws InvalidArgument, naming the file, when it is malformed or does not fit.
HiddenStates read_hidden_states(const std::filesystem::path& path, int hidden, DType dtype,
                                std::string_view tensor = {});

/// Writes rows of `hidden` elements of `dtype`: as tensor `tensor` of a .safetensors file, or as .npy (bf16 as '<u2').
/// Throws InvalidArgument, naming the file, when it cannot be written or has another ending.
void write_rows(const std::filesystem::path& path, std::string_view tensor, DType dtype, ConstRows rows, int hidden);

}  // namespace flashmoe
