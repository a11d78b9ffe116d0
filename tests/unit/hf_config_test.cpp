#include <gmock/gmock.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "flashmoe/error.hpp"
#include "flashmoe/model_config.hpp"

namespace flashmoe {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::ThrowsMessage;

std::string fixture_text(const std::string& name) {
  std::ifstream file("fixtures/configs/" + name + ".json");
  EXPECT_TRUE(file) << name << ": run in the tests folder, as ctest does";
  return (std::ostringstream() << file.rdbuf()).str();
}

/// A fixture with the value at a JSON pointer replaced, or removed where `value` is empty.
std::string changed(const std::string& fixture, const std::string& pointer, const std::string& value) {
  json config = json::parse(fixture_text(fixture));
  const json::json_pointer place(pointer);
  if (value.empty()) {
    config.at(place.parent_pointer()).erase(place.back());
  } else {
    config[place] = json::parse(value);
  }
  return config.dump();
}

ModelConfig parse_changed(const std::string& fixture, const std::string& pointer, const std::string& value) {
  return parse_model_config(changed(fixture, pointer, value), "config.json");
}

// ---- what configs mean ----------------------------------------------------------------------------------------------

TEST(HfConfig, qwen2_moe_has_a_shared_expert_and_plain_softmax_weights) {
  const ModelConfig config = load_model_config("fixtures/configs/qwen1.5-moe-a2.7b.json");
  EXPECT_EQ(config.name, "fixtures/configs/qwen1.5-moe-a2.7b.json");
  EXPECT_EQ(config.architecture, "qwen2_moe");
  EXPECT_EQ(config.hidden, 2048);
  EXPECT_EQ(config.intermediate, 1408);
  EXPECT_EQ(config.num_experts, 60);
  EXPECT_EQ(config.top_k, 4);
  EXPECT_EQ(config.shared_intermediate, 5632);
  EXPECT_EQ(config.router, (RouterConfig{.function = RouterFunction::softmax_topk, .num_experts = 60, .top_k = 4}));
}

TEST(HfConfig, deepseek_v2_ranks_groups_by_their_best_expert) {
  const ModelConfig config = load_model_config("fixtures/configs/deepseek-v2.json");
  EXPECT_EQ(config.num_experts, 160);
  EXPECT_EQ(config.router, (RouterConfig{.function = RouterFunction::softmax_group_limited,
                                         .num_experts = 160,
                                         .top_k = 6,
                                         .scaling_factor = 16.0,
                                         .num_groups = 8,
                                         .topk_groups = 3}));
}

TEST(HfConfig, kimi_k2_reads_as_deepseek_v3_without_groups) {
  const ModelConfig config = load_model_config("fixtures/configs/kimi-k2.json");
  EXPECT_EQ(config.architecture, "deepseek_v3");
  EXPECT_EQ(config.num_experts, 384);
  EXPECT_TRUE(config.has_selection_bias);
  EXPECT_EQ(config.moe_layers.front(), 1);
  EXPECT_EQ(config.router, (RouterConfig{.function = RouterFunction::sigmoid_grouped,
                                         .num_experts = 384,
                                         .top_k = 8,
                                         .renormalize = true,
                                         .scaling_factor = 2.827}));
}

TEST(HfConfig, wrappers_of_language_models_are_read_through_text_config) {
  const json kimi = json::parse(fixture_text("kimi-k2"));
  const json wrapped = {{"model_type", "kimi_k25"}, {"vision_config", json::object()}, {"text_config", kimi}};
  EXPECT_EQ(parse_model_config(wrapped.dump(), "x"), parse_model_config(kimi.dump(), "x"));
  // Where text_config does not name its type, the wrapper decides.
  EXPECT_EQ(parse_changed("llama4-scout", "/text_config/model_type", ""),
            parse_changed("llama4-scout", "/text_config/model_type", "\"llama4_text\""));
  const json scout = json::parse(fixture_text("llama4-scout"));
  EXPECT_EQ(parse_model_config(scout["text_config"].dump(), "x"), parse_model_config(scout.dump(), "x"));
}

TEST(HfConfig, files_written_by_transformers_5_read_like_the_published_ones) {
  EXPECT_EQ(parse_model_config(fixture_text("qwen3-30b-a3b.transformers5"), "x"),
            parse_model_config(fixture_text("qwen3-30b-a3b"), "x"));
}

TEST(HfConfig, the_count_of_experts_has_three_names) {
  for (const auto& [fixture, key] :
       {std::pair("mixtral-8x7b", "num_local_experts"), std::pair("olmoe-1b-7b", "num_experts"),
        std::pair("deepseek-v3", "n_routed_experts"), std::pair("deepseek-v2-lite", "n_routed_experts")}) {
    const json published = json::parse(fixture_text(fixture));
    for (const char* name : {"num_local_experts", "num_experts", "n_routed_experts"}) {
      json renamed = published;
      renamed.erase(key);
      renamed[name] = published[key];
      EXPECT_EQ(parse_model_config(renamed.dump(), "x"), parse_model_config(published.dump(), "x"))
          << fixture << " with " << name;
    }
  }
}

TEST(HfConfig, layer_rules_choose_the_moe_layers) {
  EXPECT_THAT(parse_changed("qwen3-30b-a3b", "/num_hidden_layers", "4").moe_layers, ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(parse_changed("qwen3-30b-a3b", "/decoder_sparse_step", "3").moe_layers.front(), 2);
  EXPECT_EQ(parse_changed("qwen3-30b-a3b", "/decoder_sparse_step", "3").moe_layers.size(), 16u);
  const ModelConfig some_dense = parse_changed("qwen3-30b-a3b", "/mlp_only_layers", "[47, 0, 5, 0, 99]");
  EXPECT_EQ(some_dense.moe_layers.size(), 45u);
  for (const int layer : {0, 5, 47}) EXPECT_FALSE(is_moe_layer(some_dense, layer));
  EXPECT_TRUE(is_moe_layer(some_dense, 1));

  // Every second layer, listed and by rule.
  const ModelConfig maverick = load_model_config("fixtures/configs/llama4-maverick.json");
  EXPECT_EQ(maverick.moe_layers.size(), 24u);
  EXPECT_EQ(maverick.moe_layers.front(), 1);
  for (const char* list : {"", "null"}) {
    EXPECT_EQ(parse_changed("llama4-maverick", "/text_config/moe_layers", list).moe_layers, maverick.moe_layers);
  }
  EXPECT_THAT(parse_changed("llama4-scout", "/text_config/moe_layers", "[7, 3]").moe_layers, ElementsAre(3, 7));

  const ModelConfig frequency = parse_changed("deepseek-v3", "/moe_layer_freq", "20");
  EXPECT_THAT(frequency.moe_layers, ElementsAre(20, 40, 60));
}

TEST(HfConfig, activation_names_of_transformers_are_known) {
  const auto activation = [](const std::string& name) {
    return parse_changed("mixtral-8x7b", "/hidden_act", '"' + name + '"').activation;
  };
  EXPECT_EQ(activation("silu"), Activation::silu);
  EXPECT_EQ(activation("swish"), Activation::silu);
  EXPECT_EQ(activation("gelu"), Activation::gelu_erf);
  EXPECT_EQ(activation("gelu_python"), Activation::gelu_erf);
  for (const char* name : {"gelu_new", "gelu_pytorch_tanh", "gelu_python_tanh", "gelu_fast", "gelu_accurate"}) {
    EXPECT_EQ(activation(name), Activation::gelu_tanh) << name;
  }
  EXPECT_EQ(activation("relu"), Activation::relu);
  EXPECT_EQ(activation("relu2"), Activation::relu_squared);
  EXPECT_EQ(activation("linear"), Activation::identity);
  EXPECT_EQ(parse_changed("dbrx", "/ffn_config/ffn_act_fn/name", "\"gelu\"").activation, Activation::gelu_erf);
  EXPECT_EQ(parse_changed("dbrx", "/ffn_config/ffn_act_fn", "null").activation, Activation::silu);
  EXPECT_EQ(parse_changed("gpt-oss-20b", "/hidden_act", "\"gelu\"").activation, Activation::swiglu_clamped);
}

TEST(HfConfig, keys_a_config_may_leave_out_have_the_defaults_of_transformers) {
  struct Case {
    std::string fixture;
    std::string pointer;
    std::string same_as;
  };
  for (const Case& left_out : std::vector<Case>{
           {"mixtral-8x7b", "/hidden_act", "\"silu\""},
           {"qwen3-30b-a3b", "/norm_topk_prob", "false"},
           {"qwen3-30b-a3b", "/decoder_sparse_step", "1"},
           {"qwen3-30b-a3b", "/mlp_only_layers", "[]"},
           {"qwen1.5-moe-a2.7b", "/shared_expert_intermediate_size", "5632"},
           {"olmoe-1b-7b", "/norm_topk_prob", "false"},
           {"deepseek-v2", "/topk_method", "\"greedy\""},
           {"deepseek-v2", "/routed_scaling_factor", "1.0"},
           {"deepseek-v2", "/first_k_dense_replace", "0"},
           {"deepseek-v2", "/n_shared_experts", "2"},
           {"deepseek-v3", "/n_group", "8"},
           {"deepseek-v3", "/topk_group", "4"},
           {"deepseek-v3", "/norm_topk_prob", "true"},
           {"deepseek-v3", "/routed_scaling_factor", "2.5"},
           {"deepseek-v3", "/first_k_dense_replace", "3"},
           {"deepseek-v3", "/moe_layer_freq", "1"},
           {"deepseek-v3", "/n_shared_experts", "1"},
           {"deepseek-v3", "/scoring_func", "\"sigmoid\""},
           {"deepseek-v3", "/topk_method", "\"noaux_tc\""},
           {"llama4-scout", "/text_config/interleave_moe_layer_step", "1"},
           {"gpt-oss-20b", "/swiglu_alpha", "1.702"},
           {"gpt-oss-20b", "/swiglu_limit", "7.0"},
           {"dbrx", "/ffn_config/moe_normalize_expert_weights", "1.0"},
           {"dbrx", "/ffn_config/ffn_act_fn", "{\"name\": \"silu\"}"},
           {"phi-3.5-moe", "/router_jitter_noise", "0.01"},
       }) {
    json present = json::parse(fixture_text(left_out.fixture));
    present[json::json_pointer(left_out.pointer)] = json::parse(left_out.same_as);
    json absent = present;
    const json::json_pointer place(left_out.pointer);
    absent.at(place.parent_pointer()).erase(place.back());
    EXPECT_EQ(parse_model_config(absent.dump(), "x"), parse_model_config(present.dump(), "x"))
        << left_out.fixture << left_out.pointer;
  }
}

TEST(HfConfig, optional_keys_are_not_ignored) {
  EXPECT_TRUE(parse_changed("olmoe-1b-7b", "/norm_topk_prob", "true").router.renormalize);
  EXPECT_FALSE(parse_changed("deepseek-v3", "/norm_topk_prob", "false").router.renormalize);
  EXPECT_EQ(parse_changed("deepseek-v2-lite", "/routed_scaling_factor", "16").router.scaling_factor, 16.0);
  EXPECT_EQ(parse_changed("deepseek-v3", "/n_shared_experts", "null").shared_intermediate, 0);
  EXPECT_EQ(parse_changed("gpt-oss-20b", "/swiglu_alpha", "1.5").swiglu_alpha, 1.5);
  EXPECT_EQ(parse_changed("gpt-oss-20b", "/swiglu_limit", "10").swiglu_limit, 10.0);
  EXPECT_EQ(parse_changed("phi-3.5-moe", "/router_jitter_noise", "0.05").router.jitter_epsilon, 0.05);
  EXPECT_FALSE(parse_changed("dbrx", "/ffn_config/moe_normalize_expert_weights", "null").router.renormalize);
}

// ---- refusals -------------------------------------------------------------------------------------------------------

struct Refusal {
  std::string fixture;
  std::string pointer;
  std::string value;  ///< empty: the key is removed
  std::string message;
};
const std::string kCompare = ": compare with the config.json the model was published with";

const std::vector<Refusal> kRefusals = {
    {"mixtral-8x7b", "/model_type", "", "model_type (missing) in config.json must be a string" + kCompare},
    {"mixtral-8x7b", "/model_type", "7", "model_type (7) in config.json must be a string" + kCompare},
    {"mixtral-8x7b", "/model_type", "\"llama\"",
     "model_type (\"llama\") in config.json must be one of mixtral, qwen2_moe, qwen3_moe, olmoe, deepseek_v2, "
     "deepseek_v3, kimi_k2, llama4_text, gpt_oss, dbrx, phimoe, llama4, kimi_k25: no other family of MoE models is "
     "known"},
    {"mixtral-8x7b", "/hidden_size", "",
     "hidden_size (missing) in config.json must be an integer between 1 and 65536" + kCompare},
    {"mixtral-8x7b", "/hidden_size", "\"big\\n\"",
     "hidden_size (\"big?\") in config.json must be an integer between 1 and 65536" + kCompare},
    {"mixtral-8x7b", "/hidden_size", "null",
     "hidden_size (null) in config.json must be an integer between 1 and 65536" + kCompare},
    {"mixtral-8x7b", "/hidden_size", "true",
     "hidden_size (true) in config.json must be an integer between 1 and 65536" + kCompare},
    {"mixtral-8x7b", "/hidden_size", "[4096]",
     "hidden_size (an array) in config.json must be an integer between 1 and 65536" + kCompare},
    {"mixtral-8x7b", "/hidden_size", "{}",
     "hidden_size (an object) in config.json must be an integer between 1 and 65536" + kCompare},
    {"mixtral-8x7b", "/hidden_size", "4096.0",
     "hidden_size (4096.0) in config.json must be an integer between 1 and 65536" + kCompare},
    {"mixtral-8x7b", "/hidden_size", "-4096",
     "hidden_size (-4096) in config.json must be an integer between 1 and 65536" + kCompare},
    {"mixtral-8x7b", "/hidden_size", "4294971392",  // 2^32 + 4096
     "hidden_size (4294971392) in config.json must be an integer between 1 and 65536" + kCompare},
    {"mixtral-8x7b", "/hidden_size", "18446744073709551615",
     "hidden_size (18446744073709551615) in config.json must be an integer between 1 and 65536" + kCompare},
    {"mixtral-8x7b", "/hidden_size", "36893488147419103232",  // 2^65
     "hidden_size (3.6893488147419103e+19) in config.json must be an integer between 1 and 65536" + kCompare},
    {"mixtral-8x7b", "/intermediate_size", "0",
     "intermediate_size (0) in config.json must be an integer between 1 and 262144" + kCompare},
    {"mixtral-8x7b", "/num_hidden_layers", "1000000000",
     "num_hidden_layers (1000000000) in config.json must be an integer between 1 and 10000" + kCompare},
    {"mixtral-8x7b", "/num_local_experts", "",
     "num_local_experts (missing) in config.json must be an integer between 1 and 4096" + kCompare},
    {"mixtral-8x7b", "/num_experts", "16",
     "num_experts (16) in config.json must be equal to num_local_experts (8)" + kCompare},
    {"mixtral-8x7b", "/num_experts_per_tok", "9",
     "num_experts_per_tok (9) in config.json must be at most num_local_experts (8)" + kCompare},
    {"mixtral-8x7b", "/num_experts_per_tok", "33",
     "num_experts_per_tok (33) in config.json must be an integer between 1 and 32" + kCompare},
    {"mixtral-8x7b", "/hidden_act", "\"quick_gelu\"",
     "hidden_act (\"quick_gelu\") in config.json must be one of silu, swish, gelu, gelu_python, gelu_new, "
     "gelu_pytorch_tanh, gelu_python_tanh, gelu_fast, gelu_accurate, relu, relu2, linear: no other activation is "
     "implemented"},
    {"mixtral-8x7b", "/hidden_act", "3", "hidden_act (3) in config.json must be a string" + kCompare},
    {"qwen3-30b-a3b", "/moe_intermediate_size", "",
     "moe_intermediate_size (missing) in config.json must be an integer between 1 and 262144" + kCompare},
    {"qwen3-30b-a3b", "/norm_topk_prob", "1", "norm_topk_prob (1) in config.json must be true or false" + kCompare},
    {"qwen3-30b-a3b", "/decoder_sparse_step", "0",
     "decoder_sparse_step (0) in config.json must be an integer between 1 and 10000" + kCompare},
    {"qwen3-30b-a3b", "/decoder_sparse_step", "49",
     "num_hidden_layers (48) in config.json must be enough for one MoE layer: the other keys leave every layer dense"},
    {"qwen3-30b-a3b", "/mlp_only_layers", "3",
     "mlp_only_layers (3) in config.json must be a list of integers between 0 and 10000" + kCompare},
    {"qwen3-30b-a3b", "/mlp_only_layers", "[0, \"1\"]",
     "mlp_only_layers (an array) in config.json must be a list of integers between 0 and 10000" + kCompare},
    {"qwen1.5-moe-a2.7b", "/shared_expert_intermediate_size", "-1",
     "shared_expert_intermediate_size (-1) in config.json must be an integer between 0 and 262144" + kCompare},
    {"deepseek-v2", "/topk_method", "\"noaux_tc\"",
     "topk_method (\"noaux_tc\") in config.json must be one of greedy, group_limited_greedy: no other selection of "
     "deepseek_v2 is known"},
    {"deepseek-v2", "/scoring_func", "\"sigmoid\"",
     "scoring_func (\"sigmoid\") in config.json must be \"softmax\"" + kCompare},
    {"deepseek-v2", "/norm_topk_prob", "true",
     "norm_topk_prob (true) in config.json must be false: implementations of deepseek_v2 differ in what true means"},
    {"deepseek-v2", "/n_group", "null",
     "n_group (null) in config.json must be an integer between 1 and 4096" + kCompare},
    {"deepseek-v2", "/n_group", "7",
     "n_group (7) in config.json must be a divisor of n_routed_experts (160)" + kCompare},
    {"deepseek-v2", "/topk_group", "9",
     "topk_group (9) in config.json must be at most n_group (8) and enough for num_experts_per_tok (6)" + kCompare},
    {"deepseek-v3", "/n_group", "256",
     "n_group (256) in config.json must be a divisor of n_routed_experts (256) that leaves groups of 2 or more" +
         kCompare},
    {"deepseek-v2", "/n_group", "160",  // groups of one expert
     "topk_group (3) in config.json must be at most n_group (160) and enough for num_experts_per_tok (6)" + kCompare},
    {"deepseek-v3", "/topk_group", "0",
     "topk_group (0) in config.json must be an integer between 1 and 4096" + kCompare},
    {"deepseek-v3", "/routed_scaling_factor", "0",
     "routed_scaling_factor (0) in config.json must be a number between 1e-06 and 1000000" + kCompare},
    {"deepseek-v3", "/routed_scaling_factor", "\"2.5\"",
     "routed_scaling_factor (\"2.5\") in config.json must be a number between 1e-06 and 1000000" + kCompare},
    {"deepseek-v3", "/scoring_func", "\"softmax\"",
     "scoring_func (\"softmax\") in config.json must be \"sigmoid\"" + kCompare},
    {"deepseek-v3", "/topk_method", "\"greedy\"",
     "topk_method (\"greedy\") in config.json must be \"noaux_tc\"" + kCompare},
    {"deepseek-v3", "/moe_layer_freq", "0",
     "moe_layer_freq (0) in config.json must be an integer between 1 and 10000" + kCompare},
    {"deepseek-v3", "/first_k_dense_replace", "61",
     "num_hidden_layers (61) in config.json must be enough for one MoE layer: the other keys leave every layer dense"},
    {"deepseek-v3", "/n_shared_experts", "65",
     "n_shared_experts (65) in config.json must be an integer between 0 and 64" + kCompare},
    {"llama4-scout", "/text_config", "", "text_config (missing) in config.json must be an object" + kCompare},
    {"llama4-scout", "/text_config", "[]", "text_config (an array) in config.json must be an object" + kCompare},
    {"llama4-scout", "/text_config/hidden_size", "",
     "text_config.hidden_size (missing) in config.json must be an integer between 1 and 65536" + kCompare},
    {"llama4-scout", "/text_config/moe_layers", "[48]",
     "text_config.moe_layers (an array) in config.json must be a list of integers between 0 and 47" + kCompare},
    {"llama4-scout", "/text_config/moe_layers", "[]",
     "text_config.num_hidden_layers (48) in config.json must be enough for one MoE layer: the other keys leave every "
     "layer dense"},
    {"gpt-oss-20b", "/swiglu_limit", "-7.0",
     "swiglu_limit (-7.0) in config.json must be a number between 1e-06 and 1000000" + kCompare},
    {"gpt-oss-20b", "/swiglu_alpha", "1e300",
     "swiglu_alpha (1e+300) in config.json must be a number between -1000000 and 1000000" + kCompare},
    {"dbrx", "/ffn_config", "", "ffn_config (missing) in config.json must be an object" + kCompare},
    {"dbrx", "/ffn_config/moe_top_k", "17",
     "ffn_config.moe_top_k (17) in config.json must be at most moe_num_experts (16)" + kCompare},
    {"dbrx", "/ffn_config/moe_normalize_expert_weights", "2",
     "ffn_config.moe_normalize_expert_weights (2) in config.json must be 1 or null: no other norm is implemented"},
    {"dbrx", "/ffn_config/ffn_act_fn", "\"silu\"",
     "ffn_config.ffn_act_fn (\"silu\") in config.json must be an object" + kCompare},
    {"phi-3.5-moe", "/num_experts_per_tok", "4",
     "num_experts_per_tok (4) in config.json must be 2: the sparsemixer router picks two experts"},
    {"phi-3.5-moe", "/router_jitter_noise", "-0.01",
     "router_jitter_noise (-0.01) in config.json must be a number between 0 and 1" + kCompare},
};

TEST(HfConfig, a_broken_key_is_named_with_the_file_what_was_got_and_what_was_wanted) {
  for (const Refusal& refusal : kRefusals) {
    SCOPED_TRACE(refusal.fixture + refusal.pointer + " = " + refusal.value);
    EXPECT_THAT([&] { parse_changed(refusal.fixture, refusal.pointer, refusal.value); },
                ThrowsMessage<InvalidArgument>(refusal.message));
  }
}

TEST(HfConfig, text_that_is_no_config_is_refused) {
  const auto parse = [](const std::string& text) { return [text] { parse_model_config(text, "config.json"); }; };
  EXPECT_THAT(parse(""), ThrowsMessage<InvalidArgument>(
                             "config.json must be valid JSON, and ends too early, at byte 0: fetch the file again"));
  EXPECT_THAT(parse("{\"a\": NaN}"),
              ThrowsMessage<InvalidArgument>(
                  "config.json must be valid JSON, and is not from byte 7 of 10 on: fetch the file again"));
  EXPECT_THAT(parse("{\"a\": 1e999}"),
              ThrowsMessage<InvalidArgument>(
                  "config.json must hold numbers that fit a double, and has one too large: correct that number"));
  EXPECT_THAT(parse("[]"),
              ThrowsMessage<InvalidArgument>("config.json (an array) must hold one JSON object: check that "
                                             "it is a model's config.json"));
  EXPECT_THAT(parse("null"),
              ThrowsMessage<InvalidArgument>("config.json (null) must hold one JSON object: check that it "
                                             "is a model's config.json"));
  EXPECT_THAT(parse("{}"),
              ThrowsMessage<InvalidArgument>("model_type (missing) in config.json must be a string" + kCompare));
}

TEST(HfConfig, deep_and_long_texts_are_refused_before_they_cost_anything) {
  for (const std::string open : {"[", "{\"a\":"}) {
    std::string deep = "{\"model_type\": \"mixtral\", \"x\": ";
    for (int depth = 0; depth < 100000; ++depth) deep += open;
    EXPECT_THAT(
        [&] { parse_model_config(deep, "config.json"); },
        ThrowsMessage<InvalidArgument>("config.json must not nest objects and arrays deeper than 64: check that it "
                                       "is the right file"));
  }
  const std::string nested_63_deep = std::string(63, '[') + std::string(63, ']');
  EXPECT_NO_THROW(parse_changed("mixtral-8x7b", "/x", nested_63_deep));
  EXPECT_THROW(parse_changed("mixtral-8x7b", "/x", '[' + nested_63_deep + ']'), InvalidArgument);

  const std::string text = fixture_text("mixtral-8x7b");
  std::string longest = text + std::string((std::size_t{16} << 20) - text.size(), ' ');
  EXPECT_EQ(parse_model_config(longest, "x"), parse_model_config(text, "x"));
  longest += ' ';
  EXPECT_THAT(
      [&] { parse_model_config(longest, "config.json"); },
      ThrowsMessage<InvalidArgument>("config.json (16777217 bytes) must be at most 16777216 bytes of JSON: check "
                                     "that it is the right file"));
}

}  // namespace
}  // namespace flashmoe
