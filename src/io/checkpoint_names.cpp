// Names as the models are published, and as transformers 5 writes them (save_original_format true, its default, and
// false).
#include "io/checkpoint_names.hpp"

#include <fmt/format.h>

#include <optional>
#include <vector>

#include "flashmoe/error.hpp"

namespace flashmoe {
namespace {

struct Format {
  std::string_view architecture;
  ExpertForm form;
  std::string_view block;  ///< the MoE block within the layer
  std::string_view router;
  std::string_view gate_part, up_part, down_part;
};

constexpr Format block_sparse(std::string_view architecture) {
  return {architecture, ExpertForm::separate, "block_sparse_moe", "gate", "w1", "w3", "w2"};
}
constexpr Format mlp(std::string_view architecture) {
  return {architecture, ExpertForm::separate, "mlp", "gate", "gate_proj", "up_proj", "down_proj"};
}
constexpr Format fused(std::string_view architecture, std::string_view router = "gate") {
  return {architecture, ExpertForm::fused, "mlp", router, "", "", ""};
}

constexpr Format kFormats[] = {
    block_sparse("mixtral"),
    fused("mixtral"),
    mlp("qwen2_moe"),
    fused("qwen2_moe"),
    mlp("qwen3_moe"),
    fused("qwen3_moe"),
    mlp("olmoe"),
    fused("olmoe"),
    mlp("deepseek_v2"),
    fused("deepseek_v2"),
    mlp("deepseek_v3"),
    fused("deepseek_v3"),
    {"llama4_text", ExpertForm::transposed, "feed_forward", "router", "", "", ""},
    {"gpt_oss", ExpertForm::interleaved, "mlp", "router", "", "", ""},
    block_sparse("phimoe"),
    fused("phimoe", "router"),
};

/// What comes before the layer's number: a model with a head, a language model inside a multimodal one, as it is
/// published and as transformers 5 nests it, and a model without a head.
constexpr std::string_view kPrefixes[] = {"model.layers.", "language_model.model.layers.",
                                          "model.language_model.layers.", "layers."};

LayerNames make_names(const Format& format, std::string_view prefix, int layer_index) {
  const std::string block = fmt::format("{}{}.{}.", prefix, layer_index, format.block);
  const std::string router = fmt::format("{}{}.", block, format.router);
  return {.form = format.form,
          .router = router + "weight",
          .router_bias = router + "bias",
          .selection_bias = router + "e_score_correction_bias",
          .gate_up = block + "experts.gate_up_proj",
          .down = block + "experts.down_proj",
          .experts = block + "experts.",
          .gate_part = format.gate_part,
          .up_part = format.up_part,
          .down_part = format.down_part};
}

/// Whether the checkpoint has the layer's experts, going by one of their tensors.
bool has_experts(const CheckpointFiles& files, const LayerNames& names) {
  return files.contains(names.form == ExpertForm::separate ? names.of_expert(0, names.gate_part) : names.gate_up);
}

std::string known_architectures() {
  std::string known;
  std::string_view last;
  for (const Format& format : kFormats) {
    if (format.architecture != last) known += fmt::format("{}{}", known.empty() ? "" : ", ", format.architecture);
    last = format.architecture;
  }
  return known;
}

}  // namespace

std::string LayerNames::of_expert(int expert_index, std::string_view part) const {
  return fmt::format("{}{}.{}.weight", experts, expert_index, part);
}

LayerNames find_layer_names(const CheckpointFiles& files, const std::string& directory, std::string_view architecture,
                            int layer_index) {
  std::optional<LayerNames> only_router;
  std::optional<LayerNames> usual;
  for (const Format& format : kFormats) {
    if (format.architecture != architecture) continue;
    for (const std::string_view prefix : kPrefixes) {
      LayerNames names = make_names(format, prefix, layer_index);
      if (!usual) usual = names;
      if (!files.contains(names.router)) continue;
      if (has_experts(files, names)) return names;
      if (!only_router) only_router = std::move(names);
    }
  }
  if (only_router) return *only_router;
  if (usual) {
    throw InvalidArgument(
        fmt::format("{} must hold the router of layer {}, tensor {} or the like, and does not: check "
                    "that it is complete and of the family its config.json says ({})",
                    directory, layer_index, usual->router, architecture));
  }
  throw InvalidArgument(fmt::format("model_type of {} ({}) must be one whose checkpoints can be loaded: {}", directory,
                                    architecture, known_architectures()));
}

}  // namespace flashmoe
