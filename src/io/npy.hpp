// NumPy's .npy files: one C-ordered little-endian array (format versions 1 to 3).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>
#include <vector>

namespace flashmoe {

/// Element types that are read and written. `bits16` is 16 raw bits, how bf16 travels in .npy: descr '<u2', or 'V2' as
/// the ml_dtypes package writes it.
enum class NpyType : std::uint8_t { int32, int64, bits16, float16, float32, float64 };

std::string_view to_string(NpyType type);
std::size_t element_bytes(NpyType type);

struct NpyArray {
  NpyType type = NpyType::float32;
  std::vector<std::int64_t> shape;
  std::vector<std::byte> data;  ///< C order

  std::int64_t num_elements() const;

  /// The elements, T of the type's size: no conversion.
  template <class T>
  const T* as() const {
    return reinterpret_cast<const T*>(data.data());
  }
};

/// Reads a whole file. Throws InvalidArgument, naming the file, for one that is missing, not regular, not .npy,
/// truncated, longer than its array, Fortran-ordered, big-endian, of another type, or with a header that makes no
/// sense. Memory is asked for only after the file's size has vouched for it.
NpyArray read_npy(const std::filesystem::path& path);

/// Writes `data` (C order, as many bytes as `shape` needs) as format version 1. Throws InvalidArgument when the
/// size does not fit the shape or the file cannot be written.
void write_npy(const std::filesystem::path& path, NpyType type, const std::vector<std::int64_t>& shape,
               std::span<const std::byte> data);

}  // namespace flashmoe
