#include "flashmoe/model_config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>

#include "core/hf_config.hpp"
#include "core/json_text.hpp"
#include "core/printable.hpp"
#include "flashmoe/error.hpp"

namespace flashmoe {
namespace {

/// The text of a regular file, at most one byte more than the JSON limit, which parse_json then refuses.
std::string read_text(const std::filesystem::path& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) {
    throw InvalidArgument(
        fmt::format("{} must exist: name a config.json or a directory that holds one", path.string()));
  }
  if (!std::filesystem::is_regular_file(status)) {
    throw InvalidArgument(
        fmt::format("{} must be a regular file: name a config.json or a directory that holds one", path.string()));
  }
  std::ifstream file(path, std::ios::binary);
  std::string text(std::min<std::uintmax_t>(std::filesystem::file_size(path, error), JsonLimits{}.bytes + 1), '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (error || !file) {
    throw InvalidArgument(fmt::format("{} must be readable: check its permissions", path.string()));
  }
  return text;
}

}  // namespace

ModelConfig parse_model_config(std::string_view json_text, std::string_view origin) {
  ModelConfig config = read_hf_config(parse_json(json_text, origin), origin);
  config.name = origin;
  return config;
}

ModelConfig load_model_config(const std::filesystem::path& path) {
  std::error_code error;
  const std::filesystem::path file = std::filesystem::is_directory(path, error) ? path / "config.json" : path;
  return parse_model_config(read_text(file), file.string());
}

const ModelConfig& model_preset(std::string_view name) {
  std::string names;
  for (const ModelConfig& preset : model_presets()) {
    if (preset.name == name) return preset;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", preset.name);
  }
  throw InvalidArgument(fmt::format("preset ({}) must be one of {}", printable(name), names));
}

Problem make_problem(const ModelConfig& config, int num_ranks, std::int64_t max_tokens, DType dtype) {
  return {.num_ranks = num_ranks,
          .hidden = config.hidden,
          .intermediate = config.intermediate,
          .num_experts = config.num_experts,
          .top_k = config.top_k,
          .max_tokens = max_tokens,
          .dtype = dtype,
          .activation = config.activation,
          .gated = config.gated,
          .up_bias = config.up_bias,
          .down_bias = config.down_bias,
          .weight_on_input = config.weight_on_input,
          .swiglu_alpha = config.swiglu_alpha,
          .swiglu_limit = config.swiglu_limit};
}

bool is_moe_layer(const ModelConfig& config, int layer) {
  return std::binary_search(config.moe_layers.begin(), config.moe_layers.end(), layer);
}

}  // namespace flashmoe
