#include "io/safetensors_types.hpp"

#include <algorithm>
#include <array>

namespace flashmoe {
namespace {

struct TypeRow {
  std::string_view name;
  unsigned bits;
};
constexpr std::array kTypes = {
    TypeRow{"BOOL", 8},    TypeRow{"F4", 4},          TypeRow{"F6_E2M3", 6},     TypeRow{"F6_E3M2", 6},
    TypeRow{"U8", 8},      TypeRow{"I8", 8},          TypeRow{"F8_E5M2", 8},     TypeRow{"F8_E4M3", 8},
    TypeRow{"F8_E8M0", 8}, TypeRow{"F8_E4M3FNUZ", 8}, TypeRow{"F8_E5M2FNUZ", 8}, TypeRow{"I16", 16},
    TypeRow{"U16", 16},    TypeRow{"F16", 16},        TypeRow{"BF16", 16},       TypeRow{"I32", 32},
    TypeRow{"U32", 32},    TypeRow{"F32", 32},        TypeRow{"C64", 64},        TypeRow{"F64", 64},
    TypeRow{"I64", 64},    TypeRow{"U64", 64},
};

const TypeRow* find_type(std::string_view name) {
  const auto found = std::find_if(kTypes.begin(), kTypes.end(), [&](const TypeRow& row) { return row.name == name; });
  return found == kTypes.end() ? nullptr : &*found;
}

}  // namespace

bool is_stored_type(std::string_view type) { return find_type(type) != nullptr; }

std::optional<std::uint64_t> stored_bytes(std::string_view type, const std::vector<std::int64_t>& shape) {
  const TypeRow* row = find_type(type);
  const bool negative = std::any_of(shape.begin(), shape.end(), [](std::int64_t dimension) { return dimension < 0; });
  if (!row || negative) return std::nullopt;
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  std::uint64_t bits = row->bits;
  for (const std::int64_t dimension : shape) {
    if (__builtin_mul_overflow(bits, static_cast<std::uint64_t>(dimension), &bits)) return std::nullopt;
  }
  return bits % 8 == 0 ? std::optional(bits / 8) : std::nullopt;
}

std::optional<DType> stored_dtype(std::string_view type) {
  if (type == "BF16") return DType::bf16;
  if (type == "F16") return DType::fp16;
  if (type == "F32") return DType::fp32;
  if (type == "F64") return DType::fp64;
  return std::nullopt;
}

std::string_view stored_type(DType dtype) {
  switch (dtype) {
    case DType::bf16: return "BF16";
    case DType::fp16: return "F16";
    case DType::tf32:
    case DType::fp32: return "F32";
    case DType::fp64: return "F64";
  }
  return "?";
}

}  // namespace flashmoe
