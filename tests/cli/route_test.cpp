// `flashmoe route`: the router by itself.
#include <gmock/gmock.h>

#include <filesystem>
#include <numeric>
#include <string>

#include "cli/program.hpp"
#include "io/npy.hpp"

namespace flashmoe {
namespace {

using test::expect_refused;
using test::flashmoe;
using test::Outcome;
using test::TempFolder;

TEST(CliRoute, tells_the_loads_of_a_preset_s_experts) {
  const Outcome outcome = flashmoe("route --json --backend cpu --preset deepseek-v3 --ranks 2 --tokens 3,5");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const nlohmann::json result = outcome.json();
  EXPECT_EQ(result["function"], "sigmoid_grouped");
  EXPECT_EQ(result["num_tokens"], 8);
  const auto loads = result["tokens_per_expert"].get<std::vector<int>>();
  EXPECT_EQ(loads.size(), 256u);
  EXPECT_EQ(std::accumulate(loads.begin(), loads.end(), 0), 8 * 8);
}

TEST(CliRoute, a_run_with_its_files_is_the_run_with_the_checkpoint_s_router) {
  const TempFolder folder;
  const std::string layer =
      " --backend cpu --ranks 2 --tokens 9 --checkpoint fixtures/checkpoints/qwen3_moe-bf16 --layer 1";
  const std::string files = (folder / "ids.npy").string() + "," + (folder / "weights.npy").string();
  const Outcome routed = flashmoe("route --output " + files + layer);
  ASSERT_EQ(routed.exit_code, 0) << routed.err;
  EXPECT_THAT(routed.out, testing::HasSubstr("softmax_topk of 18 tokens"));
  const auto results = [&](const char* name, const std::string& flags) {
    const Outcome outcome = flashmoe("run --json --output " + (folder / name).string() + layer + flags);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return read_npy(folder / name).data;
  };
  EXPECT_EQ(results("own.npy", ""), results("files.npy", " --routing " + files));
}

TEST(CliRoute, a_folder_that_does_not_exist_is_named) {
  expect_refused("route --backend cpu --preset qwen3-30b-a3b --tokens 1 --output /nowhere/ids.npy", "/nowhere/ids.npy");
}

TEST(CliRoute, outputs_that_cannot_be_written_are_refused_before_the_routing) {
  const TempFolder folder;
  std::filesystem::create_directory(folder / "folder.npy");
  const std::string ids = folder / "ids.npy", weights = folder / "weights.npy", taken = folder / "folder.npy";
  for (const std::string& output : {(folder / "y.safetensors").string(), ids + ",", "," + weights, ids + ",weights.txt",
                                    ids + "," + ids, ids + "," + weights + "," + weights, taken, ids + "," + taken}) {
    expect_refused("route --backend cpu --preset qwen3-30b-a3b --tokens 1 --output " + output, "IDS.npy,WEIGHTS.npy");
  }
  EXPECT_FALSE(std::filesystem::exists(ids));
}

TEST(CliRoute, help_says_what_its_output_takes) {
  EXPECT_THAT(flashmoe("route --help").out, testing::HasSubstr("Write the routes of all ranks to IDS.npy"));
  EXPECT_THAT(flashmoe("run --help").out, testing::HasSubstr("histogram:COUNTS.json"));
}

}  // namespace
}  // namespace flashmoe
