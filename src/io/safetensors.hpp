// Reader of the safetensors format: 8 bytes of header length (little endian), a JSON header that gives every tensor's
// type, shape and place, then the tensors' bytes back to back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/mapped_file.hpp"

namespace flashmoe {

/// A tensor as it lies in the file; `data` lives as long as the SafetensorsFile.
struct StoredTensor {
  std::string name;
  std::string type;  ///< the format's name, "BF16"
  std::vector<std::int64_t> shape;
  std::span<const std::byte> data;  ///< C order, little endian; aligned only as far as the file's writer cared
};

class SafetensorsFile {
 public:
  /// Maps the file and checks its header against itself and the file's size: the tensors' bytes must cover the rest of
  /// the file without gap or overlap, each as many as its type and shape need. Throws InvalidArgument, one sentence
  /// that names the file and the tensor, for anything else, and what parse_json() refuses: a header of more than
  /// 16 MiB, a key given twice. No tensor's bytes are touched.
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }

  /// In the order of their bytes.
  const std::vector<StoredTensor>& tensors() const { return tensors_; }

  /// The tensor of that name, or null.
  const StoredTensor* find(std::string_view name) const;

 private:
  std::filesystem::path path_;
  MappedFile file_;
  std::vector<StoredTensor> tensors_;
  std::map<std::string, std::size_t, std::less<>> by_name_;  // index into tensors_
};

}  // namespace flashmoe
