#include "outputs.hpp"

#include <fmt/format.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <system_error>

#include "core/json_text.hpp"
#include "core/printable.hpp"
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

/// The schema of a results file; empty: it is none, or there is nothing.
std::string schema_of(const std::filesystem::path& path) {
  std::error_code error;
  const bool may_be = std::filesystem::is_regular_file(path, error) &&
                      std::filesystem::file_size(path, error) <= JsonLimits{}.bytes && !error;
  if (!may_be) return {};
  std::ifstream stream(path, std::ios::binary);
  const std::string text(std::istreambuf_iterator<char>(stream), {});
  try {
    const nlohmann::json json = parse_json(text, path.string());
    const auto schema = json.is_object() ? json.find("schema") : json.end();
    return schema != json.end() && schema->is_string() ? schema->get<std::string>() : "";
  } catch (const InvalidArgument&) {
    return {};  // no JSON
  }
}

/// Whether writing `output` would change what is read of `input`. Links have a file under several names.
bool replaces(const std::filesystem::path& output, const std::filesystem::path& input) {
  std::error_code error;
  if (!std::filesystem::is_directory(input, error)) return std::filesystem::equivalent(output, input, error);
  // A file that is new in a checkpoint's folder would be taken for one of its own by the next run.
  if (one_name_of(output).parent_path() == one_name_of(input)) return true;
  for (std::filesystem::directory_iterator entry(input, error), end; !error && entry != end; entry.increment(error)) {
    std::error_code none;  // where the output is new, or a link leads nowhere
    if (std::filesystem::equivalent(output, entry->path(), none)) return true;
  }
  return false;
}

void check_inputs_stay(const OutputFile& output, const std::vector<InputFile>& inputs) {
  if (is_device(output.path)) return;
  for (const InputFile& input : inputs) {
    if (!replaces(output.path, input.path)) continue;
    std::error_code ignored;
    const bool folder = std::filesystem::is_directory(input.path, ignored);
    throw InvalidArgument(fmt::format("{} ({}) must not {} {} ({}), which it is computed from: give another file",
                                      output.flag, output.path.string(), folder ? "be a file of" : "replace the file of",
                                      input.flag, input.path.string()));
  }
}

}  // namespace

void check_outputs(const std::vector<OutputFile>& outputs, const std::vector<InputFile>& inputs) {
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const auto& [flag, path, schema] = outputs[i];
    if (path.empty()) continue;
    std::error_code ignored;
    if (!std::filesystem::is_directory(path.has_parent_path() ? path.parent_path() : ".", ignored))
      throw InvalidArgument(fmt::format("{} ({}) must lie in an existing folder", flag, path.string()));
    if (std::filesystem::is_directory(path, ignored))
      throw InvalidArgument(fmt::format("{} ({}) is a folder: name a file in it", flag, path.string()));
    check_inputs_stay(outputs[i], inputs);
    if (const std::string found = schema_of(path); !found.empty() && found != schema) {
      throw InvalidArgument(
          fmt::format("{} ({}) must not replace a results file of another kind, got \"{}\": give another file", flag,
                      path.string(), printable(found)));
    }
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
