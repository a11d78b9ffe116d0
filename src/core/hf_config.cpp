// Keys, defaults and meanings follow the configuration and modelling files of transformers 5.24, except where a
// comment names another source. Keys that only training or attention reads are ignored.
#include "core/hf_config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "core/config_reader.hpp"
#include "core/json_text.hpp"
#include "flashmoe/error.hpp"

namespace flashmoe {
namespace {

constexpr int kMaxLayers = 10000;

// ---- what several families share ----------------------------------------------------------------------------------

struct ActivationName {
  std::string_view name;
  Activation activation;
};
constexpr ActivationName kActivationNames[] = {
    {"silu", Activation::silu},
    {"swish", Activation::silu},
    {"gelu", Activation::gelu_erf},
    {"gelu_python", Activation::gelu_erf},
    {"gelu_new", Activation::gelu_tanh},
    {"gelu_pytorch_tanh", Activation::gelu_tanh},
    {"gelu_python_tanh", Activation::gelu_tanh},
    {"gelu_fast", Activation::gelu_tanh},
    {"gelu_accurate", Activation::gelu_tanh},
    {"relu", Activation::relu},
    {"relu2", Activation::relu_squared},
    {"linear", Activation::identity},
};

Activation read_activation(const ConfigReader& reader, std::string_view key) {
  const std::string name = reader.text_or(key, "silu");
  std::string names;
  for (const ActivationName& known : kActivationNames) {
    if (known.name == name) return known.activation;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", known.name);
  }
  reader.refuse(key, "one of " + names, "no other activation is implemented");
}

/// Names of the sizes, which differ between families. Versions of the format rename the count of experts
/// (attribute_map), so each of its names is taken.
struct ExpertKeys {
  std::vector<std::string_view> num_experts = {"num_local_experts", "num_experts", "n_routed_experts"};
  std::string_view top_k = "num_experts_per_tok";
  std::string_view intermediate = "intermediate_size";
};

void read_stack(const ConfigReader& reader, ModelConfig& config) {
  config.hidden = reader.integer({"hidden_size"}, 1, Limits::hidden);
  config.num_layers = reader.integer({"num_hidden_layers"}, 1, kMaxLayers);
  config.activation = read_activation(reader, "hidden_act");
}

void read_experts(const ConfigReader& reader, ModelConfig& config, const ExpertKeys& keys) {
  config.intermediate = reader.integer({keys.intermediate}, 1, Limits::intermediate);
  config.num_experts = reader.integer(keys.num_experts, 1, Limits::num_experts);
  config.top_k = reader.integer({keys.top_k}, 1, Limits::top_k);
  if (config.top_k > config.num_experts) {
    reader.refuse(keys.top_k, fmt::format("at most {} ({})", keys.num_experts.front(), config.num_experts));
  }
  config.router.num_experts = config.num_experts;
  config.router.top_k = config.top_k;
}

/// The layers in [0, num_layers) that `is_moe` accepts.
template <class Predicate>
std::vector<int> layers_where(int num_layers, Predicate&& is_moe) {
  std::vector<int> layers;
  for (int layer = 0; layer < num_layers; ++layer) {
    if (is_moe(layer)) layers.push_back(layer);
  }
  return layers;
}

std::vector<int> every_layer(const ModelConfig& config) {
  std::vector<int> layers(static_cast<std::size_t>(config.num_layers));
  std::iota(layers.begin(), layers.end(), 0);
  return layers;
}

// ---- families -------------------------------------------------------------------------------------------------------

void read_mixtral(const ConfigReader& reader, ModelConfig& config) {
  read_stack(reader, config);
  read_experts(reader, config, {});
  config.router.function = RouterFunction::softmax_topk;
  config.router.renormalize = true;
  config.moe_layers = every_layer(config);
}

void read_olmoe(const ConfigReader& reader, ModelConfig& config) {
  read_stack(reader, config);
  read_experts(reader, config, {});
  config.router.function = RouterFunction::softmax_topk;
  config.router.renormalize = reader.boolean_or("norm_topk_prob", false);
  config.moe_layers = every_layer(config);
}

void read_qwen3_moe(const ConfigReader& reader, ModelConfig& config) {
  read_stack(reader, config);
  read_experts(reader, config, {.intermediate = "moe_intermediate_size"});
  config.router.function = RouterFunction::softmax_topk;
  config.router.renormalize = reader.boolean_or("norm_topk_prob", false);
  const int sparse_step = reader.integer_or("decoder_sparse_step", 1, 1, kMaxLayers);
  const std::vector<int> dense = reader.integers("mlp_only_layers", 0, kMaxLayers).value_or(std::vector<int>());
  config.moe_layers = layers_where(config.num_layers, [&](int layer) {
    return (layer + 1) % sparse_step == 0 && !std::binary_search(dense.begin(), dense.end(), layer);
  });
}

void read_qwen2_moe(const ConfigReader& reader, ModelConfig& config) {
  read_qwen3_moe(reader, config);
  config.shared_intermediate = reader.integer_or("shared_expert_intermediate_size", 5632, 0, Limits::intermediate);
}

/// The parts DeepSeek-V2 and V3 have in common. moe_layer_freq is honoured as in DeepSeek's own modelling file;
/// transformers ignores it, and published configs have 1.
void read_deepseek(const ConfigReader& reader, ModelConfig& config, int default_first_dense, int default_num_shared) {
  read_stack(reader, config);
  read_experts(reader, config,
               {.num_experts = {"n_routed_experts", "num_local_experts", "num_experts"},
                .intermediate = "moe_intermediate_size"});
  const auto* shared = reader.find("n_shared_experts");
  const int num_shared =
      shared && shared->is_null() ? 0 : reader.integer_or("n_shared_experts", default_num_shared, 0, 64);
  config.shared_intermediate = num_shared * config.intermediate;
  const int first_dense = reader.integer_or("first_k_dense_replace", default_first_dense, 0, kMaxLayers);
  const int frequency = reader.integer_or("moe_layer_freq", 1, 1, kMaxLayers);
  config.moe_layers =
      layers_where(config.num_layers, [&](int layer) { return layer >= first_dense && layer % frequency == 0; });
}

void read_groups(const ConfigReader& reader, ModelConfig& config, int num_groups, int topk_groups) {
  const bool by_two_best = config.router.function == RouterFunction::sigmoid_grouped;
  config.router.num_groups = num_groups;
  config.router.topk_groups = topk_groups;
  const int group_size = config.num_experts / num_groups;
  if (config.num_experts % num_groups != 0 || (by_two_best && num_groups > 1 && group_size < 2)) {
    reader.refuse("n_group", fmt::format("a divisor of n_routed_experts ({}){}", config.num_experts,
                                         by_two_best ? " that leaves groups of 2 or more" : ""));
  }
  if (topk_groups > num_groups || config.top_k > topk_groups * group_size) {
    reader.refuse("topk_group", fmt::format("at most n_group ({}) and enough for num_experts_per_tok ({})", num_groups,
                                            config.top_k));
  }
}

void read_deepseek_v2(const ConfigReader& reader, ModelConfig& config) {
  read_deepseek(reader, config, 0, 2);
  if (reader.text_or("scoring_func", "softmax") != "softmax") reader.refuse("scoring_func", "\"softmax\"");
  // transformers never renormalises here; DeepSeek's own file does, then without the scaling factor.
  if (reader.boolean_or("norm_topk_prob", false)) {
    reader.refuse("norm_topk_prob", "false", "implementations of deepseek_v2 differ in what true means");
  }
  config.router.scaling_factor = reader.number_or("routed_scaling_factor", 1.0, 1e-6, 1e6);
  const std::string method = reader.text_or("topk_method", "greedy");
  if (method == "greedy") {
    config.router.function = RouterFunction::softmax_topk;
  } else if (method == "group_limited_greedy") {
    config.router.function = RouterFunction::softmax_group_limited;
    read_groups(reader, config, reader.integer({"n_group"}, 1, Limits::num_experts),
                reader.integer({"topk_group"}, 1, Limits::num_experts));
  } else {
    reader.refuse("topk_method", "one of greedy, group_limited_greedy", "no other selection of deepseek_v2 is known");
  }
}

void read_deepseek_v3(const ConfigReader& reader, ModelConfig& config) {
  read_deepseek(reader, config, 3, 1);
  if (reader.text_or("scoring_func", "sigmoid") != "sigmoid") reader.refuse("scoring_func", "\"sigmoid\"");
  if (reader.text_or("topk_method", "noaux_tc") != "noaux_tc") reader.refuse("topk_method", "\"noaux_tc\"");
  config.router.function = RouterFunction::sigmoid_grouped;
  config.router.renormalize = reader.boolean_or("norm_topk_prob", true);
  config.router.scaling_factor = reader.number_or("routed_scaling_factor", 2.5, 1e-6, 1e6);
  config.has_selection_bias = true;
  read_groups(reader, config, reader.integer_or("n_group", 8, 1, Limits::num_experts),
              reader.integer_or("topk_group", 4, 1, Limits::num_experts));
}

void read_llama4_text(const ConfigReader& reader, ModelConfig& config) {
  read_stack(reader, config);
  read_experts(reader, config, {});
  config.router.function = RouterFunction::sigmoid_topk;
  config.weight_on_input = true;
  config.shared_intermediate = config.intermediate;
  const int step = reader.integer_or("interleave_moe_layer_step", 1, 1, kMaxLayers);
  const auto listed = reader.integers("moe_layers", 0, config.num_layers - 1);
  config.moe_layers =
      listed ? *listed : layers_where(config.num_layers, [&](int layer) { return (layer + 1) % step == 0; });
}

void read_gpt_oss(const ConfigReader& reader, ModelConfig& config) {
  read_stack(reader, config);
  read_experts(reader, config, {});
  config.activation = Activation::swiglu_clamped;  // whatever hidden_act says, as in transformers
  config.swiglu_alpha = reader.number_or("swiglu_alpha", Problem{}.swiglu_alpha, -1e6, 1e6);
  config.swiglu_limit = reader.number_or("swiglu_limit", Problem{}.swiglu_limit, 1e-6, 1e6);
  config.up_bias = true;
  config.down_bias = true;
  config.router_bias = true;
  config.router.function = RouterFunction::topk_softmax;
  config.moe_layers = every_layer(config);
}

void read_dbrx(const ConfigReader& reader, ModelConfig& config) {
  config.hidden = reader.integer({"d_model", "hidden_size"}, 1, Limits::hidden);
  config.num_layers = reader.integer({"n_layers", "num_hidden_layers"}, 1, kMaxLayers);
  config.moe_layers = every_layer(config);
  const ConfigReader ffn = reader.object("ffn_config");
  read_experts(ffn, config,
               {.num_experts = {"moe_num_experts"}, .top_k = "moe_top_k", .intermediate = "ffn_hidden_size"});
  if (const auto* function = ffn.find("ffn_act_fn"); function && !function->is_null()) {
    config.activation = read_activation(ffn.object("ffn_act_fn"), "name");
  }
  // The order p of the norm that a token's weights are divided by; null: they stay as they are. Weights are positive,
  // so p = 1 divides by their sum.
  const auto* norm = ffn.find("moe_normalize_expert_weights");
  config.router.function = RouterFunction::softmax_topk;
  config.router.renormalize = !norm || !norm->is_null();
  if (config.router.renormalize && ffn.number_or("moe_normalize_expert_weights", 1.0, 0.0, 1e6) != 1.0) {
    ffn.refuse("moe_normalize_expert_weights", "1 or null", "no other norm is implemented");
  }
}

void read_phimoe(const ConfigReader& reader, ModelConfig& config) {
  read_stack(reader, config);
  read_experts(reader, config, {});
  if (config.top_k != 2) reader.refuse("num_experts_per_tok", "2", "the sparsemixer router picks two experts");
  config.router.function = RouterFunction::sparsemixer;
  config.router.jitter_epsilon = reader.number_or("router_jitter_noise", 0.01, 0.0, 1.0);
  config.moe_layers = every_layer(config);
}

struct Family {
  std::string_view model_type;
  std::string_view architecture;
  void (*read)(const ConfigReader& reader, ModelConfig& config);
};
constexpr Family kFamilies[] = {
    {"mixtral", "mixtral", read_mixtral},
    {"qwen2_moe", "qwen2_moe", read_qwen2_moe},
    {"qwen3_moe", "qwen3_moe", read_qwen3_moe},
    {"olmoe", "olmoe", read_olmoe},
    {"deepseek_v2", "deepseek_v2", read_deepseek_v2},
    {"deepseek_v3", "deepseek_v3", read_deepseek_v3},
    {"kimi_k2", "deepseek_v3", read_deepseek_v3},
    {"llama4_text", "llama4_text", read_llama4_text},
    {"gpt_oss", "gpt_oss", read_gpt_oss},
    {"dbrx", "dbrx", read_dbrx},
    {"phimoe", "phimoe", read_phimoe},
};

/// Models with more than a language model, whose config has that of the language model under text_config.
struct Wrapper {
  std::string_view model_type;
  std::string_view text_model_type;  ///< where text_config does not say
};
constexpr Wrapper kWrappers[] = {{"llama4", "llama4_text"}, {"kimi_k25", "deepseek_v3"}};

std::string known_model_types() {
  std::string names;
  for (const Family& family : kFamilies) names += fmt::format("{}, ", family.model_type);
  for (const Wrapper& wrapper : kWrappers) names += fmt::format("{}, ", wrapper.model_type);
  names.resize(names.size() - 2);
  return names;
}

ModelConfig read_family(const ConfigReader& reader, const std::string& model_type) {
  for (const Family& family : kFamilies) {
    if (family.model_type != model_type) continue;
    ModelConfig config;
    config.architecture = family.architecture;
    family.read(reader, config);
    if (config.moe_layers.empty()) {
      reader.refuse("num_hidden_layers", "enough for one MoE layer", "the other keys leave every layer dense");
    }
    return config;
  }
  reader.refuse("model_type", "one of " + known_model_types(), "no other family of MoE models is known");
}

}  // namespace

ModelConfig read_hf_config(const nlohmann::json& root, std::string_view origin) {
  if (!root.is_object()) {
    throw InvalidArgument(fmt::format("{} ({}) must hold one JSON object: check that it is a model's config.json",
                                      origin, describe(root)));
  }
  const ConfigReader reader(root, origin);
  const std::string model_type = reader.text("model_type");
  for (const Wrapper& wrapper : kWrappers) {
    if (wrapper.model_type != model_type) continue;
    const ConfigReader text = reader.object("text_config");
    return read_family(text, text.text_or("model_type", wrapper.text_model_type));
  }
  return read_family(reader, model_type);
}

}  // namespace flashmoe
