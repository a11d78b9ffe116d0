#include "outputs.hpp"

#include <fmt/format.h>

#include <system_error>

#include "flashmoe/error.hpp"

namespace flashmoe::cli {

namespace {

/// One path for every name of a file, which need not exist.
std::filesystem::path one_name_of(const std::filesystem::path& path) {
  std::error_code error;
  const std::filesystem::path result = std::filesystem::weakly_canonical(std::filesystem::absolute(path, error), error);
  return error ? path : result;
}

/// Such a file is written to, not replaced: it takes several results, one after another.
bool is_device(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored) && !std::filesystem::is_regular_file(path, ignored);
}

}  // namespace

void check_outputs(const std::vector<OutputFile>& outputs) {
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const auto& [flag, path] = outputs[i];
    if (path.empty()) continue;
    std::error_code ignored;
    if (!std::filesystem::is_directory(path.has_parent_path() ? path.parent_path() : ".", ignored))
      throw InvalidArgument(fmt::format("{} ({}) must lie in an existing folder", flag, path.string()));
    if (std::filesystem::is_directory(path, ignored))
      throw InvalidArgument(fmt::format("{} ({}) is a folder: name a file in it", flag, path.string()));
    for (std::size_t other = 0; other < i; ++other) {
      if (outputs[other].path.empty() || is_device(path) || one_name_of(outputs[other].path) != one_name_of(path))
        continue;
      throw InvalidArgument(
          fmt::format("{} and {} both name {}, where the second result would replace the first: give two "
                      "files",
                      outputs[other].flag, flag, path.string()));
    }
  }
}

}  // namespace flashmoe::cli
