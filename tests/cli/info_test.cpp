// `flashmoe info`: machine, presets, plan and memory.
#include <gmock/gmock.h>

#include "cli/program.hpp"
#include "flashmoe/model_config.hpp"
#include "flashmoe/version.hpp"

namespace flashmoe {
namespace {

using test::flashmoe;
using test::Outcome;
using testing::AllOf;
using testing::HasSubstr;

TEST(CliInfo, without_a_layer_lists_machine_and_presets) {
  const Outcome text = flashmoe("info");
  EXPECT_EQ(text.exit_code, 0);
  const nlohmann::json json = flashmoe("info --json").json();
  EXPECT_GE(json["machine"]["num_cores"], 1);
  EXPECT_GT(json["machine"]["memory_bytes"], json["machine"]["available_bytes"]);
  EXPECT_EQ(json["version"], version());
  ASSERT_EQ(json["presets"].size(), model_presets().size());
  for (const ModelConfig& model : model_presets()) EXPECT_THAT(text.out, HasSubstr(model.name));
}

TEST(CliInfo, of_a_layer_tells_heap_regions_plan_and_the_thesis_layout) {
  // Row 4,4096,16 of the thesis' Table 6.2: 4096 tokens, 16 experts, hidden 1024 in fp32, whose L takes 64 MB a rank.
  const nlohmann::json json =
      flashmoe("info --json --backend cpu --hidden 1024 --intermediate 4096 --experts 16 --top-k 2 --ranks 1 --tokens 4096 --dtype fp32")
          .json();
  EXPECT_EQ(json["thesis_layout_bytes"], 64 << 20);
  std::size_t bytes = 0;
  for (const auto& region : json["heap_regions"]) bytes += region["bytes"].get<std::size_t>();
  EXPECT_LE(bytes, json["heap_bytes"]);
  EXPECT_GT(bytes, json["heap_bytes"].get<std::size_t>() - 12 * 128);
  EXPECT_EQ(json["engine"], "cpu-openblas");
  EXPECT_THAT(json["plan"].get<std::string>(), HasSubstr("wire form counted"));
  const Outcome text = flashmoe("info --preset deepseek-v3 --ranks 8 --tokens 128");
  EXPECT_THAT(text.out, AllOf(HasSubstr("lined_rows"), HasSubstr("scratch memory"), HasSubstr("FlashDMoE thesis")));
}

TEST(CliInfo, of_a_layer_tells_the_lower_bound_of_a_balanced_call) {
  // Row Qwen3-30B-A3B,128 of tests/fixtures/roofline_ep4_bf16.csv.
  const std::string layer = "info --backend cpu --preset qwen3-30b-a3b --ranks 4 --tokens 128";
  const nlohmann::json json = flashmoe(layer + " --json").json();
  EXPECT_NEAR(json["bound_us"].get<double>(), 106.0, 0.0501);
  EXPECT_EQ(json["bound_limiter"], "hbm");
  EXPECT_NEAR(json["bound"]["compute_us"].get<double>(), 12.2, 0.0501);
  EXPECT_NEAR(json["bound"]["wire_us"].get<double>(), 6.3, 0.0501);
  EXPECT_THAT(flashmoe(layer).out, HasSubstr("106.0 us, the largest of compute 12.2, hbm 106.0 and wire 6.3"));
}

TEST(CliInfo, a_layer_larger_than_memory_can_be_planned) {
  EXPECT_EQ(flashmoe("info --preset deepseek-v3 --ranks 64 --tokens 65536").exit_code, 0);
}

TEST(CliInfo, help_and_version_go_to_standard_output) {
  const Outcome help = flashmoe("--help");
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_THAT(help.out, AllOf(HasSubstr("verify"), HasSubstr("Exit codes")));
  EXPECT_EQ(help.err, "");
  const Outcome of_run = flashmoe("run --help");
  EXPECT_EQ(of_run.exit_code, 0);
  EXPECT_THAT(of_run.out, HasSubstr("--verify-tokens"));
  EXPECT_EQ(flashmoe("--version").out, std::string(version()) + "\n");
}

}  // namespace
}  // namespace flashmoe
