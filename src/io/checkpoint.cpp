#include "io/checkpoint.hpp"

#include <fmt/format.h>

#include <new>
#include <nlohmann/json.hpp>
#include <system_error>

#include "core/hf_config.hpp"
#include "core/json_text.hpp"
#include "flashmoe/error.hpp"
#include "io/checkpoint_experts.hpp"
#include "io/checkpoint_files.hpp"
#include "io/checkpoint_names.hpp"
#include "io/expert_cache.hpp"
#include "io/mapped_file.hpp"

namespace flashmoe {
namespace {

using nlohmann::json;

/// The checkpoint's layer, without copies of experts: their handles keep it alive.
struct State {
  ModelConfig config;
  DType dtype;
  CheckpointFiles files;
  std::vector<float> router_weight, router_bias, selection_bias;
  StoredExperts stored;
};

/// What a handle owns.
struct OwnedExpert {
  std::shared_ptr<const State> state;
  std::unique_ptr<std::byte[]> up, down;  // null where the file's bytes are used
  ExpertParameters parameters;
};

std::size_t bytes_of(std::span<const StoredMatrix> matrices, DType dtype) {
  std::size_t bytes = 0;
  for (const StoredMatrix& matrix : matrices) bytes += matrix.num_elements() * dtype_bytes(dtype);
  return bytes;
}

std::size_t bytes_to_copy(std::span<const StoredMatrix> matrices, DType dtype) {
  return view_of(matrices, dtype) ? 0 : bytes_of(matrices, dtype);
}

std::size_t bytes_to_copy(const StoredExpert& expert, DType dtype) {
  return bytes_to_copy(expert.gate_up, dtype) + bytes_to_copy({&expert.down, 1}, dtype);
}

/// The engine's matrix: the file's bytes, or a copy that `owner` then holds.
const void* produce(std::span<const StoredMatrix> matrices, DType dtype, std::unique_ptr<std::byte[]>& owner) {
  if (const void* view = view_of(matrices, dtype)) return view;
  owner = std::make_unique_for_overwrite<std::byte[]>(bytes_of(matrices, dtype));
  copy_of(matrices, dtype, owner.get());
  return owner.get();
}

std::shared_ptr<const ExpertParameters> make_expert(const std::shared_ptr<const State>& state, int expert_index) {
  const auto index = static_cast<std::size_t>(expert_index);
  const StoredExpert& stored = state->stored.experts[index];
  const auto hidden = static_cast<std::size_t>(state->config.hidden);
  const auto inner = static_cast<std::size_t>(state->config.intermediate);
  try {
    auto owned = std::make_shared<OwnedExpert>();
    owned->state = state;
    owned->parameters.up = produce(stored.gate_up, state->dtype, owned->up);
    owned->parameters.down = produce({&stored.down, 1}, state->dtype, owned->down);
    if (!state->stored.up_bias.empty()) owned->parameters.up_bias = state->stored.up_bias.data() + index * 2 * inner;
    if (!state->stored.down_bias.empty()) owned->parameters.down_bias = state->stored.down_bias.data() + index * hidden;
    return {owned, &owned->parameters};
  } catch (const std::bad_alloc&) {
    throw Error(
        fmt::format("expert {} of {} needs {} bytes, but no memory is left: use fewer ranks in one process or a "
                    "smaller expert cache",
                    expert_index, state->config.name, bytes_to_copy(stored, state->dtype)));
  }
}

void refuse_quantised(const json& root, std::string_view origin) {
  for (const json* object : {&root, root.contains("text_config") ? &root["text_config"] : nullptr}) {
    if (!object || !object->is_object()) continue;
    const auto found = object->find("quantization_config");
    if (found == object->end() || found->is_null()) continue;
    const bool named = found->is_object() && found->contains("quant_method");
    throw InvalidArgument(
        fmt::format("{} must be of an unquantised checkpoint, and its quantization_config says {}: "
                    "quantised ones cannot be loaded, use one with BF16, F16 or F32 weights",
                    origin, describe(named ? (*found)["quant_method"] : *found)));
  }
}

ModelConfig read_config(const std::filesystem::path& path) {
  const MappedFile file(path);
  const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  const std::string origin = path.string();
  const json root = parse_json(text, origin);
  ModelConfig config = read_hf_config(root, origin);
  config.name = origin;
  refuse_quantised(root, origin);
  return config;
}

/// "1..3, 5", cut after a few.
std::string list_layers(const std::vector<int>& layers) {
  constexpr int kMaxRanges = 8;
  std::string list;
  int num_ranges = 0;
  for (std::size_t first = 0; first < layers.size();) {
    if (++num_ranges > kMaxRanges) return list + ", ...";
    std::size_t last = first;
    while (last + 1 < layers.size() && layers[last + 1] == layers[last] + 1) ++last;
    list += fmt::format("{}{}", list.empty() ? "" : ", ", layers[first]);
    if (last > first) list += fmt::format("..{}", layers[last]);
    first = last + 1;
  }
  return list;
}

void check_layer(const ModelConfig& config, int layer_index) {
  if (is_moe_layer(config, layer_index)) return;
  if (layer_index < 0 || layer_index >= config.num_layers) {
    throw InvalidArgument(fmt::format("layer ({}) must be one of the {} that {} has: use an MoE layer, {}", layer_index,
                                      config.num_layers, config.name, list_layers(config.moe_layers)));
  }
  throw InvalidArgument(fmt::format("layer ({}) must be an MoE layer, and is dense in {}: use {}", layer_index,
                                    config.name, list_layers(config.moe_layers)));
}

std::shared_ptr<const State> load_state(const std::filesystem::path& directory, int layer_index, DType dtype) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(directory, ignored)) {
    throw InvalidArgument(
        fmt::format("the checkpoint {} must be a directory with config.json and safetensors files: name "
                    "the one that holds them",
                    directory.string()));
  }
  ModelConfig config = read_config(directory / "config.json");
  check_layer(config, layer_index);
  auto state = std::make_shared<State>(State{std::move(config), dtype, CheckpointFiles(directory), {}, {}, {}, {}});
  const ModelConfig& model = state->config;
  const LayerNames names = find_layer_names(state->files, directory.string(), model.architecture, layer_index);
  state->router_weight = require_floats(state->files, names.router, {model.num_experts, model.hidden});
  if (model.router_bias) state->router_bias = require_floats(state->files, names.router_bias, {model.num_experts});
  if (model.has_selection_bias) {
    state->selection_bias = require_floats(state->files, names.selection_bias, {model.num_experts});
  }
  state->stored = find_experts(state->files, names, model);
  return state;
}

}  // namespace

struct CheckpointLayer::Shared {
  Shared(std::shared_ptr<const State> layer, std::size_t cache_bytes)
      : state(std::move(layer)),
        cache(state->config.num_experts, bytes_to_copy(state->stored.experts.front(), state->dtype), cache_bytes) {}

  std::shared_ptr<const State> state;
  mutable ExpertCache cache;
};

CheckpointLayer load_checkpoint_layer(const std::filesystem::path& directory, int layer_index, DType dtype,
                                      std::size_t cache_bytes) {
  return CheckpointLayer(
      std::make_shared<const CheckpointLayer::Shared>(load_state(directory, layer_index, dtype), cache_bytes));
}

const ModelConfig& CheckpointLayer::config() const { return shared_->state->config; }
const std::vector<float>& CheckpointLayer::router_weight() const { return shared_->state->router_weight; }
const std::vector<float>& CheckpointLayer::router_bias() const { return shared_->state->router_bias; }
const std::vector<float>& CheckpointLayer::selection_bias() const { return shared_->state->selection_bias; }

std::size_t CheckpointLayer::copied_bytes(int expert_index) const {
  return bytes_to_copy(shared_->state->stored.experts.at(static_cast<std::size_t>(expert_index)),
                       shared_->state->dtype);
}

std::shared_ptr<const ExpertParameters> CheckpointLayer::expert(int expert_index) const {
  if (expert_index < 0 || expert_index >= config().num_experts) {
    throw InvalidArgument(fmt::format("expert {} must be in 0..{}", expert_index, config().num_experts - 1));
  }
  return shared_->cache.get(expert_index, [&] { return make_expert(shared_->state, expert_index); });
}

}  // namespace flashmoe
