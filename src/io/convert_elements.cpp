#include "io/convert_elements.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "core/numeric.hpp"

namespace flashmoe {
namespace {

constexpr std::int64_t kBlock = 1024;     // elements converted at a time
constexpr std::int64_t kTransposed = 64;  // side of a square transposed at a time: both sides stay in the L1 cache
constexpr std::int64_t kMaxBytes = 8;     // of an element

std::byte* target(void* base, std::int64_t element, DType dtype) {
  return static_cast<std::byte*>(base) + static_cast<std::size_t>(element) * dtype_bytes(dtype);
}

const std::byte* source(const std::byte* base, std::int64_t element, DType dtype) {
  return base + static_cast<std::size_t>(element) * dtype_bytes(dtype);
}

}  // namespace

void convert_elements(DType from, const std::byte* in, std::int64_t count, DType to, void* out) {
  if (count == 0) return;
  if (same_storage(from, to)) {
    std::memcpy(out, in, static_cast<std::size_t>(count) * dtype_bytes(from));
    return;
  }
  alignas(kMaxBytes) std::array<std::byte, kBlock * kMaxBytes> aligned;
  std::array<float, kBlock> values;
  for (std::int64_t first = 0; first < count; first += kBlock) {
    const std::int64_t length = std::min(kBlock, count - first);
    std::memcpy(aligned.data(), source(in, first, from), static_cast<std::size_t>(length) * dtype_bytes(from));
    load_floats(from, aligned.data(), length, values.data());
    store_floats(to, values.data(), length, target(out, first, to));
  }
}

void convert_transposed(DType from, const std::byte* in, std::int64_t rows, std::int64_t columns,
                        std::int64_t row_stride, std::int64_t column_stride, DType to, void* out) {
  const std::size_t bytes = dtype_bytes(from);
  alignas(kMaxBytes) std::array<std::byte, kTransposed * kTransposed * kMaxBytes> square;
  for (std::int64_t first_column = 0; first_column < columns; first_column += kTransposed) {
    const std::int64_t num_columns = std::min(kTransposed, columns - first_column);
    for (std::int64_t first_row = 0; first_row < rows; first_row += kTransposed) {
      const std::int64_t num_rows = std::min(kTransposed, rows - first_row);
      for (std::int64_t r = 0; r < num_rows; ++r) {
        for (std::int64_t c = 0; c < num_columns; ++c) {
          const std::int64_t element = (first_row + r) * row_stride + (first_column + c) * column_stride;
          std::memcpy(target(square.data(), c * kTransposed + r, from), source(in, element, from), bytes);
        }
      }
      for (std::int64_t c = 0; c < num_columns; ++c) {
        convert_elements(from, source(square.data(), c * kTransposed, from), num_rows, to,
                         target(out, (first_column + c) * rows + first_row, to));
      }
    }
  }
}

}  // namespace flashmoe
