// Layers of checkpoints against what the transformers library's own blocks recorded, and how experts are handed out.
#include "io/checkpoint.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <atomic>
#include <cstring>
#include <map>
#include <thread>

#include "core/numeric.hpp"
#include "cpu/reference.hpp"
#include "cpu/router.hpp"
#include "flashmoe/error.hpp"
#include "flashmoe/router.hpp"
#include "support/checkpoint_copy.hpp"
#include "support/fixtures.hpp"

namespace flashmoe {
namespace {

using test::CheckpointCopy;
using test::CheckpointFixture;
using test::LooseTensor;
using testing::ThrowsMessage;

const float* data_or_null(const std::vector<float>& values) { return values.empty() ? nullptr : values.data(); }

/// The layer's own way from hidden states to routes.
struct Routes {
  std::vector<float> logits;
  std::vector<std::int32_t> ids;
  std::vector<float> weights;
};

Routes route(const CheckpointLayer& layer, DType dtype, ConstRows x) {
  const ModelConfig& config = layer.config();
  Routes routes;
  routes.logits.resize(static_cast<std::size_t>(x.num_rows * config.num_experts));
  routes.ids.resize(static_cast<std::size_t>(x.num_rows * config.top_k));
  routes.weights.resize(routes.ids.size());
  const RouterGate gate = {.num_experts = config.num_experts,
                           .hidden = config.hidden,
                           .weight = layer.router_weight().data(),
                           .bias = data_or_null(layer.router_bias())};
  router_logits(gate, dtype, x, routes.logits.data());
  route_logits(config.router, x.num_rows, routes.logits.data(), data_or_null(layer.selection_bias()), routes.ids.data(),
               routes.weights.data());
  return routes;
}

std::vector<double> run(const CheckpointLayer& layer, DType dtype, ConstRows x, const Routes& routes) {
  const Problem problem = make_problem(layer.config(), 1, x.num_rows, dtype);
  validate(problem);
  return reference::layer(problem, layer, x, {routes.ids.data(), routes.weights.data()});
}

class CheckpointLayers : public testing::TestWithParam<CheckpointFixture> {
 protected:
  CheckpointLayer load(DType dtype) const {
    return load_checkpoint_layer(folder_of(GetParam()), GetParam().layer, dtype);
  }
};

TEST_P(CheckpointLayers, route_as_the_library_does) {
  const CheckpointLayer layer = load(GetParam().dtype);
  const ModelConfig& config = layer.config();
  const test::RecordedBlock block = read_recorded_block(GetParam(), config.hidden, GetParam().dtype);
  ASSERT_EQ(block.input.num_tokens, 20);
  const Routes routes = route(layer, GetParam().dtype, {block.input.rows.data(), block.input.num_tokens});
  ASSERT_EQ(routes.logits.size(), block.router_logits.size());
  ASSERT_EQ(routes.ids.size(), block.topk_ids.size());
  for (std::size_t i = 0; i < routes.logits.size(); ++i) EXPECT_NEAR(routes.logits[i], block.router_logits[i], 1e-5);
  for (std::int64_t token = 0; token < block.input.num_tokens; ++token) {
    const auto first = token * config.top_k;
    const auto ours = test::sorted_routes(&routes.ids[first], &routes.weights[first], config.top_k);
    const auto theirs = test::sorted_routes(&block.topk_ids[first], &block.topk_weights[first], config.top_k);
    for (std::size_t i = 0; i < ours.size(); ++i) {
      EXPECT_EQ(ours[i].expert, theirs[i].expert) << "token " << token;
      EXPECT_NEAR(ours[i].weight, theirs[i].weight, 1e-5) << "token " << token;
    }
  }
}

TEST_P(CheckpointLayers, return_what_the_library_returns) {
  const CheckpointLayer layer = load(GetParam().dtype);
  const test::RecordedBlock block = read_recorded_block(GetParam(), layer.config().hidden, GetParam().dtype);
  const ConstRows x = {block.input.rows.data(), block.input.num_tokens};
  // 1e-5 for 16-bit checkpoints, too: both sides compute on the stored values without rounding to 16 bits.
  EXPECT_LE(reference::relative_l2(run(layer, GetParam().dtype, x, route(layer, GetParam().dtype, x)), block.output),
            1e-5);
}

TEST_P(CheckpointLayers, serve_an_engine_of_any_type) {
  for (const DType dtype : {DType::bf16, DType::fp16, DType::tf32, DType::fp32, DType::fp64}) {
    const CheckpointLayer layer = load(dtype);
    const test::RecordedBlock block = read_recorded_block(GetParam(), layer.config().hidden, dtype);
    const ConstRows x = {block.input.rows.data(), block.input.num_tokens};
    const Routes routes = {.logits = {}, .ids = block.topk_ids, .weights = block.topk_weights};
    const bool exact = dtype_bytes(dtype) > 2 || dtype == GetParam().dtype;
    const double tolerance = exact ? 1e-5 : dtype == DType::bf16 ? 1e-2 : 2e-3;
    EXPECT_LE(reference::relative_l2(run(layer, dtype, x, routes), block.output), tolerance) << to_string(dtype);
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, CheckpointLayers, testing::ValuesIn(test::checkpoint_fixtures()),
                         [](const auto& fixture) {
                           std::string name = fixture.param.name;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(CheckpointFixtures, are_all_listed) {
  std::vector<std::string> listed, there;
  for (const CheckpointFixture& fixture : test::checkpoint_fixtures()) listed.push_back(fixture.name);
  for (const auto& entry : std::filesystem::directory_iterator("fixtures/checkpoints"))
    there.push_back(entry.path().filename());
  EXPECT_THAT(there, testing::UnorderedElementsAreArray(listed));
}

// ---- how experts are handed out -------------------------------------------------------------------------------------

std::size_t matrix_bytes(const ModelConfig& config, DType dtype) {
  return static_cast<std::size_t>(config.hidden) * static_cast<std::size_t>(config.intermediate) * dtype_bytes(dtype);
}

TEST(CheckpointExperts, nothing_is_copied_where_layout_and_type_fit) {
  const std::map<std::string, std::size_t> copied_matrices = {
      {"qwen2_moe-fp16", 0},   {"olmoe-bf16", 0},         {"olmoe-fp32", 0},
      {"deepseek_v2-fp32", 0}, {"mixtral-fp32-fused", 0}, {"phimoe-bf16-fused", 0},
      {"mixtral-bf16", 2},     {"phimoe-bf16", 2},   // w2 lies between w1 (gate) and w3 (up)
      {"deepseek_v3-fp32", 2},                       // gate and up are in different shards
      {"llama4-bf16", 3},      {"gpt_oss-bf16", 3},  // transposed
  };
  for (const CheckpointFixture& fixture : test::checkpoint_fixtures()) {
    const auto expected = copied_matrices.find(fixture.name);
    if (expected == copied_matrices.end()) continue;
    const CheckpointLayer layer = load_checkpoint_layer(folder_of(fixture), fixture.layer, fixture.dtype);
    for (int e = 0; e < layer.config().num_experts; ++e) {
      EXPECT_EQ(layer.copied_bytes(e), expected->second * matrix_bytes(layer.config(), fixture.dtype))
          << fixture.name << " " << e;
    }
  }
}

TEST(CheckpointExperts, another_type_is_copied_whole) {
  const CheckpointLayer layer = load_checkpoint_layer("fixtures/checkpoints/olmoe-bf16", 0, DType::fp32);
  EXPECT_EQ(layer.copied_bytes(0), 3 * matrix_bytes(layer.config(), DType::fp32));
  EXPECT_EQ(load_checkpoint_layer("fixtures/checkpoints/olmoe-fp32", 0, DType::tf32).copied_bytes(0), 0u);
}

TEST(CheckpointExperts, fused_and_separate_tensors_give_the_same_bytes) {
  const CheckpointLayer separate = load_checkpoint_layer("fixtures/checkpoints/mixtral-fp32", 1, DType::fp32);
  const CheckpointLayer fused = load_checkpoint_layer("fixtures/checkpoints/mixtral-fp32-fused", 1, DType::fp32);
  const std::size_t matrix = matrix_bytes(separate.config(), DType::fp32);
  for (int e = 0; e < separate.config().num_experts; ++e) {
    const auto a = separate.expert(e);
    const auto b = fused.expert(e);
    EXPECT_EQ(std::memcmp(a->up, b->up, 2 * matrix), 0);
    EXPECT_EQ(std::memcmp(a->down, b->down, matrix), 0);
  }
  EXPECT_EQ(separate.router_weight(), fused.router_weight());
}

TEST(CheckpointExperts, other_layers_have_other_experts) {
  const CheckpointLayer first = load_checkpoint_layer("fixtures/checkpoints/mixtral-fp32", 0, DType::fp32);
  const CheckpointLayer second = load_checkpoint_layer("fixtures/checkpoints/mixtral-fp32", 1, DType::fp32);
  EXPECT_NE(first.router_weight(), second.router_weight());
  EXPECT_NE(std::memcmp(first.expert(0)->up, second.expert(0)->up, 64), 0);
}

TEST(CheckpointExperts, handles_outlive_the_layer) {
  std::shared_ptr<const ExpertParameters> viewed, copied;
  std::vector<std::byte> before;
  std::size_t matrix = 0;
  {
    const CheckpointLayer layer = load_checkpoint_layer("fixtures/checkpoints/olmoe-bf16", 0, DType::bf16);
    matrix = matrix_bytes(layer.config(), DType::bf16);
    viewed = layer.expert(3);
    before.assign(static_cast<const std::byte*>(viewed->up), static_cast<const std::byte*>(viewed->up) + 2 * matrix);
    copied = load_checkpoint_layer("fixtures/checkpoints/olmoe-bf16", 0, DType::fp32, 1 << 20).expert(3);
  }
  EXPECT_EQ(std::memcmp(viewed->up, before.data(), before.size()), 0);
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(matrix); ++i) {
    ASSERT_EQ(load_element(DType::fp32, copied->up, i), load_element(DType::bf16, before.data(), i));
  }
}

TEST(CheckpointExperts, kept_copies_are_handed_out_again) {
  const std::string folder = "fixtures/checkpoints/mixtral-bf16";
  const std::size_t one = load_checkpoint_layer(folder, 1, DType::bf16).copied_bytes(0);
  const CheckpointLayer layer = load_checkpoint_layer(folder, 1, DType::bf16, one);
  std::weak_ptr<const ExpertParameters> kept = layer.expert(0);
  EXPECT_FALSE(kept.expired());
  std::weak_ptr<const ExpertParameters> next = layer.expert(1);
  EXPECT_TRUE(kept.expired());
  EXPECT_FALSE(next.expired());
}

TEST(CheckpointExperts, threads_may_ask_at_once) {
  const CheckpointLayer layer = load_checkpoint_layer("fixtures/checkpoints/gpt_oss-bf16", 0, DType::fp32, 1 << 14);
  const auto expected = layer.expert(2);
  const std::size_t bytes = 2 * matrix_bytes(layer.config(), DType::fp32);
  std::vector<std::jthread> threads;
  std::atomic<int> wrong = 0;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) {
        const auto handle = layer.expert((t + i) % layer.config().num_experts);
        if ((t + i) % layer.config().num_experts == 2 && std::memcmp(handle->up, expected->up, bytes) != 0) ++wrong;
      }
    });
  }
  threads.clear();
  EXPECT_EQ(wrong, 0);
}

TEST(CheckpointExperts, unaligned_tensors_are_copied) {
  const CheckpointCopy copy("olmoe-fp32");
  std::string text = copy.read("model.safetensors");
  std::uint64_t length = 0;
  std::memcpy(&length, text.data(), 8);
  text.insert(8 + length, 1, ' ');  // the header may end in spaces
  ++length;
  std::memcpy(text.data(), &length, 8);
  copy.write("model.safetensors", text);
  const CheckpointLayer aligned = load_checkpoint_layer("fixtures/checkpoints/olmoe-fp32", 0, DType::fp32);
  const CheckpointLayer layer = load_checkpoint_layer(copy.path(), 0, DType::fp32);
  const std::size_t matrix = matrix_bytes(layer.config(), DType::fp32);
  EXPECT_EQ(layer.copied_bytes(0), 3 * matrix);
  EXPECT_EQ(std::memcmp(layer.expert(5)->up, aligned.expert(5)->up, 2 * matrix), 0);
  EXPECT_EQ(std::memcmp(layer.expert(5)->down, aligned.expert(5)->down, matrix), 0);
  EXPECT_EQ(layer.router_weight(), aligned.router_weight());
}

TEST(CheckpointExperts, a_file_in_another_order_gives_the_same) {
  const CheckpointCopy copy("olmoe-bf16");
  copy.edit("model.safetensors",
            [](std::vector<LooseTensor>& tensors) { std::reverse(tensors.begin(), tensors.end()); });
  const CheckpointLayer original = load_checkpoint_layer("fixtures/checkpoints/olmoe-bf16", 0, DType::bf16);
  const CheckpointLayer layer = load_checkpoint_layer(copy.path(), 0, DType::bf16);
  const std::size_t matrix = matrix_bytes(layer.config(), DType::bf16);
  EXPECT_EQ(layer.copied_bytes(4), 2 * matrix);
  EXPECT_EQ(std::memcmp(layer.expert(4)->up, original.expert(4)->up, 2 * matrix), 0);
}

TEST(CheckpointExperts, models_inside_others_and_without_a_head_are_found) {
  const CheckpointLayer original = load_checkpoint_layer("fixtures/checkpoints/olmoe-bf16", 0, DType::bf16);
  for (const std::string prefix : {"language_model.model.layers.", "model.language_model.layers.", "layers."}) {
    const CheckpointCopy copy("olmoe-bf16");
    copy.edit("model.safetensors", [&](std::vector<LooseTensor>& tensors) {
      for (LooseTensor& tensor : tensors) {
        if (tensor.name.starts_with("model.layers.")) tensor.name.replace(0, std::strlen("model.layers."), prefix);
      }
    });
    EXPECT_EQ(load_checkpoint_layer(copy.path(), 0, DType::bf16).router_weight(), original.router_weight()) << prefix;
  }
}

TEST(CheckpointExperts, experts_that_do_not_exist_are_refused) {
  const CheckpointLayer layer = load_checkpoint_layer("fixtures/checkpoints/olmoe-bf16", 0, DType::bf16);
  EXPECT_THAT([&] { (void)layer.expert(-1); }, ThrowsMessage<InvalidArgument>("expert -1 must be in 0..5"));
  EXPECT_THAT([&] { (void)layer.expert(6); }, ThrowsMessage<InvalidArgument>("expert 6 must be in 0..5"));
}

}  // namespace
}  // namespace flashmoe
