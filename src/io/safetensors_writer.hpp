// Writer of the safetensors format (reader: safetensors.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace flashmoe {

struct TensorToWrite {
  std::string name;
  std::string type;  ///< the format's name: stored_type(), or "I32", ...
  std::vector<std::int64_t> shape;
  std::span<const std::byte> data;  ///< C order
};

/// Writes the tensors in the given order, the header padded so that they begin at a multiple of 8 bytes. Throws
/// InvalidArgument when a tensor's size does not fit its type and shape, two have one name, or the file cannot be
/// written.
void write_safetensors(const std::filesystem::path& path, const std::vector<TensorToWrite>& tensors);

}  // namespace flashmoe
