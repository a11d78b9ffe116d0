// Every way a checkpoint can be wrong, and the sentence that says so.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "flashmoe/error.hpp"
#include "io/checkpoint.hpp"
#include "support/checkpoint_copy.hpp"

namespace flashmoe {
namespace {

using test::CheckpointCopy;
using test::LooseTensor;
using testing::ThrowsMessage;

constexpr const char* kModel = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

/// Expects layer `layer` to be refused with DIR replaced by the folder.
void expect_refused(const std::filesystem::path& folder, int layer, std::string message) {
  for (std::size_t at = message.find("DIR"); at != message.npos; at = message.find("DIR", at + 1)) {
    message.replace(at, 3, folder.string());
  }
  EXPECT_THAT([&] { load_checkpoint_layer(folder, layer, DType::bf16); }, ThrowsMessage<InvalidArgument>(message));
}

void expect_refused(const CheckpointCopy& copy, int layer, const std::string& message) {
  expect_refused(copy.path(), layer, message);
}

TEST(CheckpointErrors, what_is_no_directory) {
  const std::string wanted =
      "the checkpoint DIR must be a directory with config.json and safetensors files: name the one that "
      "holds them";
  expect_refused("fixtures/no/such/folder", 0, wanted);
  expect_refused("fixtures/configs/dbrx.json", 0, wanted);
}

TEST(CheckpointErrors, no_config) {
  const CheckpointCopy copy("olmoe-bf16");
  copy.remove("config.json");
  expect_refused(copy, 0, "DIR/config.json must be a readable file: No such file or directory");
}

TEST(CheckpointErrors, an_unknown_architecture) {
  const CheckpointCopy copy("olmoe-bf16");
  copy.replace("config.json", "\"olmoe\"", "\"gpt2\"");
  expect_refused(
      copy, 0,
      "model_type (\"gpt2\") in DIR/config.json must be one of mixtral, qwen2_moe, qwen3_moe, olmoe, deepseek_v2, "
      "deepseek_v3, kimi_k2, llama4_text, gpt_oss, dbrx, phimoe, llama4, kimi_k25: no other family of MoE models "
      "is known");
}

TEST(CheckpointErrors, a_family_whose_checkpoints_are_not_known) {
  const CheckpointCopy copy("olmoe-bf16");
  std::filesystem::copy_file("fixtures/configs/dbrx.json", copy.path() / "config.json",
                             std::filesystem::copy_options::overwrite_existing);
  expect_refused(
      copy, 0,
      "model_type of DIR (dbrx) must be one whose checkpoints can be loaded: mixtral, qwen2_moe, qwen3_moe, olmoe, "
      "deepseek_v2, deepseek_v3, llama4_text, gpt_oss, phimoe");
}

TEST(CheckpointErrors, layers_that_do_not_exist_or_are_dense) {
  const CheckpointCopy copy("qwen3_moe-bf16");
  expect_refused(copy, 2, "layer (2) must be one of the 2 that DIR/config.json has: use an MoE layer, 1");
  expect_refused(copy, -1, "layer (-1) must be one of the 2 that DIR/config.json has: use an MoE layer, 1");
  expect_refused(copy, 0, "layer (0) must be an MoE layer, and is dense in DIR/config.json: use 1");
  const CheckpointCopy sparse("qwen3_moe-bf16");
  sparse.replace("config.json", "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 48");
  expect_refused(
      sparse, 46,
      "layer (46) must be an MoE layer, and is dense in DIR/config.json: use 1, 3, 5, 7, 9, 11, 13, 15, ...");
  const CheckpointCopy deep("deepseek_v3-bf16");
  deep.replace("config.json", "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 61");
  expect_refused(deep, 0, "layer (0) must be an MoE layer, and is dense in DIR/config.json: use 1..60");
}

TEST(CheckpointErrors, a_layer_the_files_lack) {
  const CheckpointCopy copy("olmoe-bf16");
  copy.replace("config.json", "\"num_hidden_layers\": 1", "\"num_hidden_layers\": 2");
  expect_refused(
      copy, 1,
      "DIR must hold the router of layer 1, tensor model.layers.1.mlp.gate.weight or the like, and does not: check "
      "that it is complete and of the family its config.json says (olmoe)");
}

TEST(CheckpointErrors, quantised_checkpoints) {
  const CheckpointCopy copy("deepseek_v3-bf16");
  copy.replace("config.json", "{",
               R"({"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},)");
  expect_refused(
      copy, 1,
      "DIR/config.json must be of an unquantised checkpoint, and its quantization_config says \"fp8\": quantised "
      "ones cannot be loaded, use one with BF16, F16 or F32 weights");
  const CheckpointCopy odd("olmoe-bf16");
  odd.replace("config.json", "{", R"({"quantization_config": "int4",)");
  expect_refused(
      odd, 0,
      "DIR/config.json must be of an unquantised checkpoint, and its quantization_config says \"int4\": quantised "
      "ones cannot be loaded, use one with BF16, F16 or F32 weights");
  const CheckpointCopy unquantised("olmoe-bf16");
  unquantised.replace("config.json", "{", R"({"quantization_config": null,)");
  EXPECT_NO_THROW(load_checkpoint_layer(unquantised.path(), 0, DType::bf16));
}

TEST(CheckpointErrors, quantised_tensors) {
  const std::string name = "model.layers.0.mlp.experts.2.up_proj.weight";
  for (const std::string type : {"F8_E4M3", "U8", "I8"}) {
    const CheckpointCopy copy("olmoe-bf16");
    copy.edit(kModel, [&](std::vector<LooseTensor>& tensors) {
      LooseTensor& tensor = CheckpointCopy::find(tensors, name);
      tensor.type = type;
      tensor.data.resize(tensor.data.size() / 2);
    });
    expect_refused(copy, 0,
                   fmt::format("tensor {} of DIR/model.safetensors must be BF16, F16, F32 or F64, not {}: quantised "
                               "checkpoints cannot be loaded, use the unquantised one",
                               name, type));
  }
}

TEST(CheckpointErrors, no_safetensors_files) {
  const CheckpointCopy copy("olmoe-bf16");
  copy.remove(kModel);
  expect_refused(
      copy, 0,
      "DIR must hold model.safetensors or model.safetensors.index.json, and holds neither: fetch the checkpoint in "
      "the safetensors format");
}

TEST(CheckpointErrors, a_malformed_index) {
  const CheckpointCopy copy("mixtral-bf16");
  const std::string no_map =
      "DIR/model.safetensors.index.json must have an object weight_map from tensors to files: fetch the "
      "file again";
  copy.write(kIndex, "{");
  expect_refused(
      copy, 1,
      "DIR/model.safetensors.index.json must be valid JSON, and ends too early, at byte 1: fetch the file again");
  copy.write(kIndex, "");
  expect_refused(
      copy, 1,
      "DIR/model.safetensors.index.json must be valid JSON, and ends too early, at byte 0: fetch the file again");
  for (const char* index : {"{}", "[]", "1", "{\"weight_map\": []}", "{\"weight_map\": null}"}) {
    copy.write(kIndex, index);
    expect_refused(copy, 1, no_map);
  }
  copy.write(kIndex, R"({"weight_map": {"a": "x", "a": "y"}})");
  expect_refused(copy, 1,
                 "DIR/model.safetensors.index.json must give every key of an object once, and gives a twice: fetch the "
                 "file again");
}

TEST(CheckpointErrors, shards_outside_the_directory) {
  const CheckpointCopy copy("mixtral-bf16");
  for (const std::string file :
       {"\"../x.safetensors\"", "\"/etc/passwd\"", "\"a/b\"", "\"..\"", "\".\"", "\"\"", "7", "null"}) {
    copy.write(kIndex, "{\"weight_map\": {\"a\": " + file + "}}");
    expect_refused(
        copy, 1,
        "weight_map of DIR/model.safetensors.index.json must give tensor a the name of a file beside it, not " + file);
  }
  copy.write(kIndex, R"({"weight_map": {"a": "x\u0000y"}})");
  expect_refused(
      copy, 1,
      "weight_map of DIR/model.safetensors.index.json must give tensor a the name of a file beside it, not \"x?y\"");
}

TEST(CheckpointErrors, a_missing_shard) {
  const CheckpointCopy copy("mixtral-bf16");
  const std::string name = "model.layers.1.block_sparse_moe.experts.0.w1.weight";
  const std::string shard = copy.shard_of(name);
  ASSERT_NE(shard, copy.shard_of("model.layers.1.block_sparse_moe.gate.weight")) << "which is looked for first";
  copy.remove(shard);
  expect_refused(
      copy, 1,
      fmt::format("the shard {} of DIR must be there, because model.safetensors.index.json puts tensor {} into it: "
                  "fetch it",
                  shard, name));
}

TEST(CheckpointErrors, a_missing_shard_that_the_layer_does_not_need_is_none) {
  const CheckpointCopy copy("mixtral-bf16");
  const std::string needed = copy.shard_of("model.layers.1.block_sparse_moe.gate.weight");
  const std::string shard = copy.shard_of("lm_head.weight");
  ASSERT_NE(shard, needed);
  copy.remove(shard);
  EXPECT_NO_THROW(load_checkpoint_layer(copy.path(), 1, DType::bf16));
}

TEST(CheckpointErrors, a_shard_that_is_a_directory) {
  const CheckpointCopy copy("mixtral-bf16");
  const std::string shard = copy.shard_of("model.layers.1.block_sparse_moe.gate.weight");
  copy.remove(shard);
  std::filesystem::create_directory(copy.path() / shard);
  expect_refused(copy, 1, fmt::format("DIR/{} must be a regular file: it is a directory, a pipe or a device", shard));
}

TEST(CheckpointErrors, a_truncated_file) {
  const CheckpointCopy copy("olmoe-bf16");
  const std::string text = copy.read(kModel);
  copy.write(kModel, text.substr(0, 1000));
  std::uint64_t length = 0;
  std::memcpy(&length, text.data(), 8);
  expect_refused(
      copy, 0,
      fmt::format("DIR/model.safetensors (1000 bytes) must hold 8 bytes of length and a header as long as they say "
                  "({}): it is cut short or no safetensors file, so fetch the file again",
                  length));
}

TEST(CheckpointErrors, a_shard_that_lacks_its_tensor) {
  const CheckpointCopy copy("mixtral-bf16");
  const std::string name = "model.layers.1.block_sparse_moe.experts.2.w2.weight";
  const std::string shard = copy.shard_of(name);
  copy.erase(shard, name);
  expect_refused(
      copy, 1,
      fmt::format("DIR/{} must hold tensor {}, because model.safetensors.index.json puts it there: fetch both files "
                  "again",
                  shard, name));
}

TEST(CheckpointErrors, missing_tensors) {
  struct Case {
    const char* fixture;
    int layer;
    const char* tensor;
  };
  for (const Case& c : {Case{"olmoe-bf16", 0, "model.layers.0.mlp.experts.5.down_proj.weight"},
                        Case{"olmoe-bf16", 0, "model.layers.0.mlp.experts.0.gate_proj.weight"},
                        Case{"gpt_oss-bf16", 0, "model.layers.0.mlp.router.bias"},
                        Case{"gpt_oss-bf16", 0, "model.layers.0.mlp.experts.gate_up_proj"},
                        Case{"gpt_oss-bf16", 0, "model.layers.0.mlp.experts.gate_up_proj_bias"},
                        Case{"gpt_oss-bf16", 0, "model.layers.0.mlp.experts.down_proj_bias"}}) {
    const CheckpointCopy copy(c.fixture);
    copy.erase(kModel, c.tensor);
    expect_refused(
        copy, c.layer,
        fmt::format("the checkpoint DIR must have a tensor {}, and has none of that name: check that it is complete "
                    "and of the family its config.json says",
                    c.tensor));
  }
}

TEST(CheckpointErrors, a_missing_selection_bias) {
  const CheckpointCopy copy("deepseek_v3-bf16");
  const std::string name = "model.layers.1.mlp.gate.e_score_correction_bias";
  const std::string shard = copy.shard_of(name);
  copy.erase(shard, name);
  expect_refused(
      copy, 1,
      fmt::format("DIR/{} must hold tensor {}, because model.safetensors.index.json puts it there: fetch both files "
                  "again",
                  shard, name));
}

TEST(CheckpointErrors, wrong_shapes) {
  struct Case {
    const char* fixture;
    const char* tensor;
    const char* wanted;
    std::vector<std::int64_t> got;
  };
  for (const Case& c :
       {Case{"olmoe-bf16", "model.layers.0.mlp.gate.weight", "[6, 40]", {40, 6}},
        Case{"olmoe-bf16", "model.layers.0.mlp.experts.1.gate_proj.weight", "[24, 40]", {40, 24}},
        Case{"olmoe-bf16", "model.layers.0.mlp.experts.1.up_proj.weight", "[24, 40]", {960}},
        Case{"olmoe-bf16", "model.layers.0.mlp.experts.1.down_proj.weight", "[40, 24]", {1, 40, 24}},
        Case{"phimoe-bf16-fused", "model.layers.0.mlp.experts.gate_up_proj", "[6, 48, 40]", {6, 40, 48}},
        Case{"phimoe-bf16-fused", "model.layers.0.mlp.experts.down_proj", "[6, 40, 24]", {6, 24, 40}},
        Case{"gpt_oss-bf16", "model.layers.0.mlp.experts.gate_up_proj", "[6, 40, 48]", {6, 48, 40}},
        Case{"gpt_oss-bf16", "model.layers.0.mlp.experts.down_proj", "[6, 24, 40]", {6, 40, 24}},
        Case{"gpt_oss-bf16", "model.layers.0.mlp.experts.gate_up_proj_bias", "[6, 48]", {48, 6}},
        Case{"gpt_oss-bf16", "model.layers.0.mlp.experts.down_proj_bias", "[6, 40]", {240}},
        Case{"gpt_oss-bf16", "model.layers.0.mlp.router.bias", "[6]", {6, 1}}}) {
    const CheckpointCopy copy(c.fixture);
    copy.reshape(kModel, c.tensor, c.got);
    expect_refused(
        copy, 0,
        fmt::format("tensor {} of DIR/model.safetensors must have shape {}, as the config.json beside it says, not "
                    "[{}]: check that both are of one model",
                    c.tensor, c.wanted, fmt::join(c.got, ", ")));
  }
}

TEST(CheckpointErrors, an_index_goes_before_a_single_file) {
  const CheckpointCopy copy("olmoe-bf16");
  copy.write(kIndex, R"({"weight_map": {"model.layers.0.mlp.gate.weight": "elsewhere.safetensors"}})");
  expect_refused(
      copy, 0,
      "the shard elsewhere.safetensors of DIR must be there, because model.safetensors.index.json puts tensor "
      "model.layers.0.mlp.gate.weight into it: fetch it");
}

}  // namespace
}  // namespace flashmoe
