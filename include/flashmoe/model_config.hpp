// MoE layers of published models: presets by name, and any Hugging Face config.json of their families.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "flashmoe/export.hpp"
#include "flashmoe/problem.hpp"
#include "flashmoe/router.hpp"
#include "flashmoe/types.hpp"

namespace flashmoe {

/// What a model fixes about its MoE layers; the same for every MoE layer of it.
struct ModelConfig {
  std::string name;          ///< the preset's name, or where the config was read from
  std::string architecture;  ///< model_type of the language model; kimi_k2 reads as deepseek_v3. Empty for `thesis`
  int hidden = 0;
  int intermediate = 0;  ///< of one routed expert
  int num_experts = 0;   ///< routed ones
  int top_k = 0;
  Activation activation = Activation::silu;
  bool gated = true;
  bool up_bias = false;
  bool down_bias = false;
  bool router_bias = false;  ///< the router's logits have a bias, fp32 [num_experts]
  bool weight_on_input = false;
  double swiglu_alpha = Problem{}.swiglu_alpha;
  double swiglu_limit = Problem{}.swiglu_limit;
  RouterConfig router;
  bool has_selection_bias = false;  ///< route_logits() takes a selection_bias (DeepSeek-V3's e_score_correction_bias)
  int num_layers = 0;
  std::vector<int> moe_layers;  ///< layers that are MoE, ascending, zero-based; the others are dense
  int shared_intermediate =
      0;  ///< inner width of the shared expert every token takes; 0: none. It is left to the model

  bool operator==(const ModelConfig&) const = default;
};

/// Every preset, in the order of the documentation. Built once; safe from any thread.
FLASHMOE_API const std::vector<ModelConfig>& model_presets();

/// The preset of that name; throws InvalidArgument listing the names.
FLASHMOE_API const ModelConfig& model_preset(std::string_view name);

/// Reads a Hugging Face config.json. Families: mixtral, qwen2_moe, qwen3_moe, olmoe, deepseek_v2, deepseek_v3
/// (kimi_k2), llama4, gpt_oss, dbrx, phimoe. `origin` names the text in messages. A key that a config may leave out
/// has the default of the transformers library; sizes and counts have none.
/// Throws InvalidArgument, one sentence, on text that is no JSON object, is longer than 16 MiB or nested deeper than
/// 64, on an unknown family, and on a key that is missing, of a wrong type or out of range.
FLASHMOE_API ModelConfig parse_model_config(std::string_view json_text, std::string_view origin);

/// parse_model_config of a file, or of config.json in a directory.
FLASHMOE_API ModelConfig load_model_config(const std::filesystem::path& path);

/// The layer's Problem, with the plan's choices left to the plan. Not validated: the caller may still change it.
FLASHMOE_API Problem make_problem(const ModelConfig& config, int num_ranks, std::int64_t max_tokens, DType dtype);

/// Whether `layer` (zero-based) is an MoE layer; false outside 0..num_layers-1.
FLASHMOE_API bool is_moe_layer(const ModelConfig& config, int layer);

}  // namespace flashmoe
