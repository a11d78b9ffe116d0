// Presets are the keys of the published config.json files that shape an MoE layer, read as any other config is, so that
// a family's router and layer rules stand in one place (hf_config.cpp).
#include <string_view>

#include "flashmoe/model_config.hpp"

namespace flashmoe {
namespace {

struct Preset {
  std::string_view name;
  std::string_view config;
};

constexpr Preset kPresets[] = {
    // mistralai/Mixtral-8x7B-v0.1
    {"mixtral-8x7b", R"({"model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336,
        "num_local_experts": 8, "num_experts_per_tok": 2, "num_hidden_layers": 32})"},
    // mistralai/Mixtral-8x22B-v0.1
    {"mixtral-8x22b", R"({"model_type": "mixtral", "hidden_size": 6144, "intermediate_size": 16384,
        "num_local_experts": 8, "num_experts_per_tok": 2, "num_hidden_layers": 56})"},
    // Qwen/Qwen3-30B-A3B
    {"qwen3-30b-a3b", R"({"model_type": "qwen3_moe", "hidden_size": 2048, "moe_intermediate_size": 768,
        "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48, "norm_topk_prob": true})"},
    // Qwen/Qwen3-235B-A22B
    {"qwen3-235b-a22b", R"({"model_type": "qwen3_moe", "hidden_size": 4096, "moe_intermediate_size": 1536,
        "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 94, "norm_topk_prob": true})"},
    // deepseek-ai/DeepSeek-V3
    {"deepseek-v3", R"({"model_type": "deepseek_v3", "hidden_size": 7168, "moe_intermediate_size": 2048,
        "n_routed_experts": 256, "num_experts_per_tok": 8, "num_hidden_layers": 61, "first_k_dense_replace": 3,
        "n_shared_experts": 1, "n_group": 8, "topk_group": 4, "norm_topk_prob": true,
        "routed_scaling_factor": 2.5})"},
    // deepseek-ai/DeepSeek-V2-Lite
    {"deepseek-v2-lite", R"({"model_type": "deepseek_v2", "hidden_size": 2048, "moe_intermediate_size": 1408,
        "n_routed_experts": 64, "num_experts_per_tok": 6, "num_hidden_layers": 27, "first_k_dense_replace": 1,
        "n_shared_experts": 2, "topk_method": "greedy", "norm_topk_prob": false, "routed_scaling_factor": 1.0})"},
    // meta-llama/Llama-4-Scout-17B-16E
    {"llama4-scout", R"({"model_type": "llama4_text", "hidden_size": 5120, "intermediate_size": 8192,
        "num_local_experts": 16, "num_experts_per_tok": 1, "num_hidden_layers": 48,
        "interleave_moe_layer_step": 1})"},
    // openai/gpt-oss-20b
    {"gpt-oss-20b", R"({"model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880,
        "num_local_experts": 32, "num_experts_per_tok": 4, "num_hidden_layers": 24, "swiglu_limit": 7.0})"},
    // openai/gpt-oss-120b
    {"gpt-oss-120b", R"({"model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880,
        "num_local_experts": 128, "num_experts_per_tok": 4, "num_hidden_layers": 36, "swiglu_limit": 7.0})"},
    // allenai/OLMoE-1B-7B-0924
    {"olmoe-1b-7b", R"({"model_type": "olmoe", "hidden_size": 2048, "intermediate_size": 1024,
        "num_experts": 64, "num_experts_per_tok": 8, "num_hidden_layers": 16, "norm_topk_prob": false})"},
    // databricks/dbrx-base
    {"dbrx", R"({"model_type": "dbrx", "d_model": 6144, "n_layers": 40, "ffn_config": {"ffn_hidden_size": 10752,
        "moe_num_experts": 16, "moe_top_k": 4, "moe_normalize_expert_weights": 1}})"},
    // microsoft/Phi-3.5-MoE-instruct
    {"phi-3.5-moe", R"({"model_type": "phimoe", "hidden_size": 4096, "intermediate_size": 6400,
        "num_local_experts": 16, "num_experts_per_tok": 2, "num_hidden_layers": 32, "router_jitter_noise": 0.01})"},
};

/// The layer that the FlashDMoE thesis evaluates (section 6.1: hidden 1024, FFN 4096, top-2; 32 experts as in its
/// scaling runs). Its FFN is two linear maps with biases around an activation (section 1, equation 5.3), for which
/// ReLU is the example the text gives throughout; equations 5.1 and 5.2 divide a token's weights by their sum.
ModelConfig thesis() {
  ModelConfig config;
  config.name = "thesis";
  config.hidden = 1024;
  config.intermediate = 4096;
  config.num_experts = 32;
  config.top_k = 2;
  config.activation = Activation::relu;
  config.gated = false;
  config.up_bias = true;
  config.down_bias = true;
  config.router = {.function = RouterFunction::softmax_topk, .num_experts = 32, .top_k = 2, .renormalize = true};
  config.num_layers = 1;
  config.moe_layers = {0};
  return config;
}

}  // namespace

const std::vector<ModelConfig>& model_presets() {
  static const std::vector<ModelConfig> presets = [] {
    std::vector<ModelConfig> all;
    for (const Preset& preset : kPresets) all.push_back(parse_model_config(preset.config, preset.name));
    all.push_back(thesis());
    return all;
  }();
  return presets;
}

}  // namespace flashmoe
