// The safetensors files of a checkpoint directory: model.safetensors, or shards with model.safetensors.index.json.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "io/safetensors.hpp"

namespace flashmoe {

/// Finds tensors by name; opens a shard when its first tensor is asked for. Not thread-safe.
class CheckpointFiles {
 public:
  /// Reads the index, or where there is none the header of the one file. Throws InvalidArgument, one sentence, when
  /// there is neither file, the index is malformed, or names a shard that is not a plain file name.
  explicit CheckpointFiles(const std::filesystem::path& directory);

  /// Whether the checkpoint says that it has the tensor.
  bool contains(std::string_view name) const { return file_names_.contains(name); }

  /// The tensor; it and its bytes live as long as this object. Throws InvalidArgument, one sentence, when there is none
  /// of that name, its shard is missing or malformed, or the shard lacks it.
  const StoredTensor& tensor(std::string_view name);

  /// The file of a tensor the checkpoint contains.
  std::filesystem::path file_of(std::string_view name) const { return directory_ / file_names_.find(name)->second; }

 private:
  void read_index(const std::filesystem::path& path);

  std::filesystem::path directory_;
  std::map<std::string, std::string, std::less<>> file_names_;  // of every tensor
  std::map<std::string, SafetensorsFile, std::less<>> open_;    // by file name
};

}  // namespace flashmoe
