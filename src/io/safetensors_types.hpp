// Element types of the safetensors format, and the bytes a tensor takes.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "flashmoe/types.hpp"

namespace flashmoe {

/// Whether the format has a type of that name.
bool is_stored_type(std::string_view type);

/// Bytes of a tensor; nothing where 64 bits cannot count them, its elements do not fill whole bytes, a dimension is
/// negative or the type is unknown.
std::optional<std::uint64_t> stored_bytes(std::string_view type, const std::vector<std::int64_t>& shape);

/// The engine's type of a stored one (BF16, F16, F32, F64), if there is one.
std::optional<DType> stored_dtype(std::string_view type);

/// The format's name of the engine's type; tf32 is stored as F32.
std::string_view stored_type(DType dtype);

}  // namespace flashmoe
