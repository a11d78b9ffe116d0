// A fixture's checkpoint copied into a temporary folder, to be damaged there.
#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "io/safetensors.hpp"
#include "io/safetensors_writer.hpp"
#include "support/temp_folder.hpp"

namespace flashmoe::test {

/// A tensor with bytes of its own.
struct LooseTensor {
  std::string name, type;
  std::vector<std::int64_t> shape;
  std::vector<std::byte> data;
};

class CheckpointCopy {
 public:
  explicit CheckpointCopy(const std::string& fixture) {
    std::filesystem::copy("fixtures/checkpoints/" + fixture, path());
  }

  std::filesystem::path path() const { return folder_ / "model"; }

  std::string read(const std::string& file) const {
    return (std::ostringstream() << std::ifstream(path() / file, std::ios::binary).rdbuf()).str();
  }
  void write(const std::string& file, std::string_view content) const { folder_.write("model/" + file, content); }
  void remove(const std::string& file) const { std::filesystem::remove(path() / file); }

  /// Replaces the first `from`, which must be there.
  void replace(const std::string& file, const std::string& from, const std::string& to) const {
    std::string text = read(file);
    const std::size_t at = text.find(from);
    ASSERT_NE(at, text.npos) << from;
    write(file, text.replace(at, from.size(), to));
  }

  /// The file the index names for a tensor.
  std::string shard_of(const std::string& tensor) const {
    const std::string index = read("model.safetensors.index.json");
    const std::size_t key = index.find('"' + tensor + '"');
    const std::size_t begin = index.find('"', key + tensor.size() + 2) + 1;
    return index.substr(begin, index.find('"', begin) - begin);
  }

  /// Writes a safetensors file anew after `edit` of its tensors.
  void edit(const std::string& file, const std::function<void(std::vector<LooseTensor>&)>& edit) const {
    std::vector<LooseTensor> tensors;
    {
      const SafetensorsFile old(path() / file);
      for (const StoredTensor& t : old.tensors())
        tensors.push_back({t.name, t.type, t.shape, {t.data.begin(), t.data.end()}});
    }
    edit(tensors);
    std::vector<TensorToWrite> views;
    for (const LooseTensor& t : tensors) views.push_back({t.name, t.type, t.shape, t.data});
    write_safetensors(path() / file, views);
  }

  /// Gives a tensor another shape of as many elements.
  void reshape(const std::string& file, const std::string& tensor, const std::vector<std::int64_t>& shape) const {
    edit(file, [&](std::vector<LooseTensor>& tensors) { find(tensors, tensor).shape = shape; });
  }

  void erase(const std::string& file, const std::string& tensor) const {
    edit(file, [&](std::vector<LooseTensor>& tensors) {
      std::erase_if(tensors, [&](const LooseTensor& t) { return t.name == tensor; });
    });
  }

  static LooseTensor& find(std::vector<LooseTensor>& tensors, const std::string& name) {
    const auto found =
        std::find_if(tensors.begin(), tensors.end(), [&](const LooseTensor& t) { return t.name == name; });
    if (found == tensors.end()) throw std::runtime_error("no tensor " + name);
    return *found;
  }

 private:
  TempFolder folder_;
};

}  // namespace flashmoe::test
