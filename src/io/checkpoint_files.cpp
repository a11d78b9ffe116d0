#include "io/checkpoint_files.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <system_error>

#include "core/json_text.hpp"
#include "core/printable.hpp"
#include "flashmoe/error.hpp"
#include "io/mapped_file.hpp"

namespace flashmoe {
namespace {

using nlohmann::json;

constexpr std::string_view kSingleFile = "model.safetensors";
constexpr std::string_view kIndexFile = "model.safetensors.index.json";
constexpr std::size_t kShownName = 120;

bool is_there(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

/// Whether opening `name` inside a directory stays inside it.
bool is_plain_file_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == name.npos && name.find('\0') == name.npos;
}

}  // namespace

CheckpointFiles::CheckpointFiles(const std::filesystem::path& directory) : directory_(directory) {
  if (is_there(directory / kIndexFile)) {
    read_index(directory / kIndexFile);
    return;
  }
  if (!is_there(directory / kSingleFile)) {
    throw InvalidArgument(
        fmt::format("{} must hold {} or {}, and holds neither: fetch the checkpoint in the safetensors format",
                    directory.string(), kSingleFile, kIndexFile));
  }
  const auto [file, inserted] = open_.try_emplace(std::string(kSingleFile), directory / kSingleFile);
  for (const StoredTensor& tensor : file->second.tensors()) file_names_.emplace(tensor.name, kSingleFile);
}

void CheckpointFiles::read_index(const std::filesystem::path& path) {
  const MappedFile file(path);
  const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  const json index = parse_json(text, path.string());
  const auto weight_map = index.find("weight_map");
  if (!index.is_object() || weight_map == index.end() || !weight_map->is_object()) {
    throw InvalidArgument(
        fmt::format("{} must have an object weight_map from tensors to files: fetch the file again", path.string()));
  }
  for (const auto& [tensor, value] : weight_map->items()) {
    if (!value.is_string() || !is_plain_file_name(value.get_ref<const std::string&>())) {
      throw InvalidArgument(fmt::format("weight_map of {} must give tensor {} the name of a file beside it, not {}",
                                        path.string(), printable(tensor, kShownName), describe(value)));
    }
    file_names_.emplace(tensor, value.get_ref<const std::string&>());
  }
}

const StoredTensor& CheckpointFiles::tensor(std::string_view name) {
  const auto entry = file_names_.find(name);
  if (entry == file_names_.end()) {
    throw InvalidArgument(
        fmt::format("the checkpoint {} must have a tensor {}, and has none of that name: check that it is "
                    "complete and of the family its config.json says",
                    directory_.string(), name));
  }
  const std::string& file_name = entry->second;
  auto file = open_.find(file_name);
  if (file == open_.end()) {
    if (!is_there(directory_ / file_name)) {
      throw InvalidArgument(fmt::format("the shard {} of {} must be there, because {} puts tensor {} into it: fetch it",
                                        printable(file_name), directory_.string(), kIndexFile, name));
    }
    file = open_.try_emplace(file_name, directory_ / file_name).first;
  }
  const StoredTensor* tensor = file->second.find(name);
  if (!tensor) {
    throw InvalidArgument(fmt::format("{} must hold tensor {}, because {} puts it there: fetch both files again",
                                      (directory_ / file_name).string(), name, kIndexFile));
  }
  return *tensor;
}

}  // namespace flashmoe
