#include <gmock/gmock.h>

#include <set>

#include "flashmoe/error.hpp"
#include "flashmoe/model_config.hpp"

namespace flashmoe {
namespace {

using testing::ThrowsMessage;

/// What the models' papers and cards say, written down apart from the presets.
struct Published {
  std::string name;
  int hidden;
  int intermediate;
  int num_experts;
  int top_k;
  int num_layers;
  int num_moe_layers;
  int shared_intermediate;
  RouterConfig router;
};

const std::vector<Published> kPublished = {
    {"mixtral-8x7b", 4096, 14336, 8, 2, 32, 32, 0, {.function = RouterFunction::softmax_topk, .renormalize = true}},
    {"mixtral-8x22b", 6144, 16384, 8, 2, 56, 56, 0, {.function = RouterFunction::softmax_topk, .renormalize = true}},
    {"qwen3-30b-a3b", 2048, 768, 128, 8, 48, 48, 0, {.function = RouterFunction::softmax_topk, .renormalize = true}},
    {"qwen3-235b-a22b", 4096, 1536, 128, 8, 94, 94, 0, {.function = RouterFunction::softmax_topk, .renormalize = true}},
    {"deepseek-v3",
     7168,
     2048,
     256,
     8,
     61,
     58,
     2048,
     {.function = RouterFunction::sigmoid_grouped,
      .renormalize = true,
      .scaling_factor = 2.5,
      .num_groups = 8,
      .topk_groups = 4}},
    {"deepseek-v2-lite", 2048, 1408, 64, 6, 27, 26, 2816, {.function = RouterFunction::softmax_topk}},
    {"llama4-scout", 5120, 8192, 16, 1, 48, 48, 8192, {.function = RouterFunction::sigmoid_topk}},
    {"gpt-oss-20b", 2880, 2880, 32, 4, 24, 24, 0, {.function = RouterFunction::topk_softmax}},
    {"gpt-oss-120b", 2880, 2880, 128, 4, 36, 36, 0, {.function = RouterFunction::topk_softmax}},
    {"olmoe-1b-7b", 2048, 1024, 64, 8, 16, 16, 0, {.function = RouterFunction::softmax_topk}},
    {"dbrx", 6144, 10752, 16, 4, 40, 40, 0, {.function = RouterFunction::softmax_topk, .renormalize = true}},
    {"phi-3.5-moe", 4096, 6400, 16, 2, 32, 32, 0, {.function = RouterFunction::sparsemixer, .jitter_epsilon = 0.01}},
    {"thesis", 1024, 4096, 32, 2, 1, 1, 0, {.function = RouterFunction::softmax_topk, .renormalize = true}},
};

TEST(Presets, have_the_published_shapes_and_routers) {
  ASSERT_EQ(model_presets().size(), kPublished.size());
  for (const Published& published : kPublished) {
    SCOPED_TRACE(published.name);
    const ModelConfig& preset = model_preset(published.name);
    EXPECT_EQ(preset.name, published.name);
    EXPECT_EQ(preset.hidden, published.hidden);
    EXPECT_EQ(preset.intermediate, published.intermediate);
    EXPECT_EQ(preset.num_experts, published.num_experts);
    EXPECT_EQ(preset.top_k, published.top_k);
    EXPECT_EQ(preset.num_layers, published.num_layers);
    EXPECT_EQ(static_cast<int>(preset.moe_layers.size()), published.num_moe_layers);
    EXPECT_EQ(preset.shared_intermediate, published.shared_intermediate);
    RouterConfig router = published.router;
    router.num_experts = published.num_experts;
    router.top_k = published.top_k;
    EXPECT_EQ(preset.router, router);
  }
}

TEST(Presets, have_the_arithmetic_of_their_family) {
  for (const ModelConfig& preset : model_presets()) {
    SCOPED_TRACE(preset.name);
    const bool gpt_oss = preset.architecture == "gpt_oss";
    const bool thesis = preset.name == "thesis";
    EXPECT_EQ(preset.activation, gpt_oss ? Activation::swiglu_clamped : thesis ? Activation::relu : Activation::silu);
    EXPECT_EQ(preset.gated, !thesis);
    EXPECT_EQ(preset.up_bias, gpt_oss || thesis);
    EXPECT_EQ(preset.down_bias, gpt_oss || thesis);
    EXPECT_EQ(preset.router_bias, gpt_oss);
    EXPECT_EQ(preset.weight_on_input, preset.architecture == "llama4_text");
    EXPECT_EQ(preset.has_selection_bias, preset.architecture == "deepseek_v3");
    EXPECT_EQ(preset.swiglu_alpha, 1.702);
    EXPECT_EQ(preset.swiglu_limit, 7.0);
  }
}

TEST(Presets, are_valid_problems_on_one_to_eight_ranks) {
  for (const ModelConfig& preset : model_presets()) {
    EXPECT_NO_THROW(validate(preset.router)) << preset.name;
    for (const int num_ranks : {1, 2, 4, 8}) {
      EXPECT_NO_THROW(validate(make_problem(preset, num_ranks, 8192, DType::bf16))) << preset.name;
    }
  }
}

TEST(Presets, equal_the_configs_they_come_from) {
  for (const ModelConfig& preset : model_presets()) {
    if (preset.name == "thesis") continue;  // published as a thesis, not as a checkpoint
    ModelConfig config = load_model_config("fixtures/configs/" + preset.name + ".json");
    config.name = preset.name;
    EXPECT_EQ(config, preset) << preset.name;
  }
}

TEST(Presets, unknown_name_lists_the_known_ones) {
  EXPECT_THAT([] { model_preset("mixtral"); },
              ThrowsMessage<InvalidArgument>(
                  "preset (mixtral) must be one of mixtral-8x7b, mixtral-8x22b, qwen3-30b-a3b, qwen3-235b-a22b, "
                  "deepseek-v3, deepseek-v2-lite, llama4-scout, gpt-oss-20b, gpt-oss-120b, olmoe-1b-7b, dbrx, "
                  "phi-3.5-moe, thesis"));
}

TEST(Presets, make_problem_carries_every_property_of_the_layer) {
  ModelConfig config = model_preset("gpt-oss-120b");
  config.swiglu_alpha = 1.5;
  config.swiglu_limit = 9.0;
  EXPECT_EQ(make_problem(config, 8, 1024, DType::fp16), (Problem{.num_ranks = 8,
                                                                 .hidden = 2880,
                                                                 .intermediate = 2880,
                                                                 .num_experts = 128,
                                                                 .top_k = 4,
                                                                 .max_tokens = 1024,
                                                                 .dtype = DType::fp16,
                                                                 .activation = Activation::swiglu_clamped,
                                                                 .up_bias = true,
                                                                 .down_bias = true,
                                                                 .swiglu_alpha = 1.5,
                                                                 .swiglu_limit = 9.0}));
  EXPECT_TRUE(make_problem(model_preset("llama4-scout"), 1, 1, DType::bf16).weight_on_input);
  EXPECT_FALSE(make_problem(model_preset("thesis"), 1, 1, DType::bf16).gated);
}

TEST(Presets, know_their_dense_layers) {
  const ModelConfig& deepseek = model_preset("deepseek-v3");
  EXPECT_FALSE(is_moe_layer(deepseek, 0));
  EXPECT_FALSE(is_moe_layer(deepseek, 2));
  EXPECT_TRUE(is_moe_layer(deepseek, 3));
  EXPECT_TRUE(is_moe_layer(deepseek, 60));
  EXPECT_FALSE(is_moe_layer(deepseek, 61));
  EXPECT_FALSE(is_moe_layer(deepseek, -1));
}

}  // namespace
}  // namespace flashmoe
