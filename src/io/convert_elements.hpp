// Elements as files hold them (of any alignment) turned into the engine's.
#pragma once

#include <cstddef>
#include <cstdint>

#include "flashmoe/types.hpp"

namespace flashmoe {

/// Whether arrays of the two types have the same bytes (tf32 is stored as fp32).
constexpr bool same_storage(DType a, DType b) { return a == b || (dtype_bytes(a) == 4 && dtype_bytes(b) == 4); }

/// `count` elements of type `from`, at any address, rounded once to `to` (fp64 by way of fp32, as store_element()).
/// `out` is aligned for `to`.
void convert_elements(DType from, const std::byte* in, std::int64_t count, DType to, void* out);

/// The matrix [rows][columns] of `from`, whose element (r, c) is at in + (r * row_stride + c * column_stride) elements,
/// transposed and converted: out [columns][rows] of `to`.
void convert_transposed(DType from, const std::byte* in, std::int64_t rows, std::int64_t columns,
                        std::int64_t row_stride, std::int64_t column_stride, DType to, void* out);

}  // namespace flashmoe
