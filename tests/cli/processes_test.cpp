// `flashmoe run --processes`: one process a rank and GPU, seen from outside.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <filesystem>

#include "cli/program.hpp"

namespace flashmoe {
namespace {

using test::expect_refused;
using test::flashmoe;
using test::Outcome;
using test::Program;
using test::TempFolder;

const std::string kLayer = " --hidden 256 --intermediate 96 --experts 8 --top-k 2 --ranks 2 ";

TEST(CliProcesses, flags_that_do_not_go_together_are_refused) {
  expect_refused("run --processes --backend cpu" + kLayer, "--processes gives every rank a GPU of its own");
  expect_refused("info --processes" + kLayer, "info has no flag --processes");
  expect_refused("run --rank 1 --group-id g" + kLayer, "--processes");
  expect_refused("run --processes --rank 1" + kLayer, "--group-id");
  expect_refused("run --processes --group-id g" + kLayer, "--rank");
  expect_refused("run --processes --device 1" + kLayer, "--rank");
}

/// The sentence that says why two processes cannot run here, from the program itself; empty where they can.
std::string why_not() {
  const Outcome outcome = flashmoe("run --processes --tokens 1 --verify-tokens 0" + kLayer);
  const bool no_gpus = outcome.exit_code == 4 && (outcome.err.find("backend (cuda) needs") != std::string::npos ||
                                                  outcome.err.find("device (1) must be in 0..0") != std::string::npos);
  return no_gpus ? outcome.err : "";
}

TEST(CliProcesses, without_gpus_one_sentence_says_so) {
  const std::string reason = why_not();
  if (reason.empty()) GTEST_SKIP() << "this machine has 2 GPUs";
  const bool has_gpu = reason.find("must be in 0..0") != std::string::npos;
  expect_refused("run --processes" + kLayer, has_gpu ? "device (1) must be" : "use backend cpu, and leave --processes out", 4);
  expect_refused("verify --processes --json" + kLayer, "", 4);
}

class CliProcessesOnGpus : public ::testing::Test {
 protected:
  void SetUp() override {
    static const std::string reason = why_not();
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
};

TEST_F(CliProcessesOnGpus, every_rank_checks_its_own_tokens_and_rank_0_reports) {
  for (const char* flags : {"--dtype bf16", "--dtype fp16 --wire-form counted", "--dtype tf32 --wire-form lined",
                            "--dtype fp64 --routing all-to-one"}) {
    const Outcome outcome = flashmoe(std::string("verify --processes --json --tokens 70,33 ") + flags + kLayer);
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    const nlohmann::json json = outcome.json();
    EXPECT_EQ(json["num_processes"], 2);
    EXPECT_EQ(json["backend"], "cuda");
    EXPECT_EQ(json["kernel_launches"], 2);
    EXPECT_EQ(json["verified_tokens"], 103);
    EXPECT_EQ(json["ranks"][0]["verified_tokens"], 70);
    EXPECT_EQ(json["ranks"][1]["verified_tokens"], 33);
    EXPECT_GT(json["ranks"][1]["wire_bytes"], 0u);
    EXPECT_TRUE(json["passed"]);
  }
}

TEST_F(CliProcessesOnGpus, results_are_those_of_one_process) {
  const TempFolder folder;
  const auto bytes_of = [&](const char* name, const std::string& flags) {
    const std::string file = (folder / name).string();
    const Outcome outcome = flashmoe("run --backend cuda --tokens 50,0 --output " + file + flags + kLayer);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    std::ifstream stream(file, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(stream), {});
  };
  const std::string of_threads = bytes_of("threads.npy", "");
  EXPECT_GT(of_threads.size(), 50u * 256u * 2u);
  EXPECT_TRUE(of_threads == bytes_of("processes.npy", " --processes"));
}

TEST_F(CliProcessesOnGpus, a_launcher_may_start_the_ranks) {
  const std::string command = "verify --processes --json --tokens 20" + kLayer + "--group-id " + fmt::format("cli-{}", getpid());
  const Program rank_1(test::words(command + " --rank 1"));
  const Outcome rank_0 = flashmoe(command + " --rank 0");
  EXPECT_EQ(rank_0.exit_code, 0) << rank_0.err;
  EXPECT_TRUE(rank_0.json()["passed"]);
  const Outcome other = rank_1.wait();
  EXPECT_EQ(other.exit_code, 0) << other.err;
  EXPECT_EQ(other.out, "");
}

TEST_F(CliProcessesOnGpus, what_a_rank_cannot_do_is_said_once) {
  expect_refused("run --processes --tokens 8 --routing none.npy" + kLayer, "none.npy");
  setenv("CUDA_VISIBLE_DEVICES", "0", 1);
  expect_refused("run --processes" + kLayer, "rank 1: device (1) must be in 0..0", 4);
  unsetenv("CUDA_VISIBLE_DEVICES");
}

TEST_F(CliProcessesOnGpus, a_rank_that_is_killed_is_named) {
  // Long enough in the comparison, which every rank makes of its own tokens.
  const Program program(test::words("verify --processes --ranks 2 --tokens 1500 --hidden 2048 --intermediate 768 --experts 8 "
                                    "--top-k 8"));
  while (program.errors().find("running the layer: ") == std::string::npos) {
    ASSERT_EQ(program.errors().find("error"), std::string::npos) << program.errors();
    usleep(10000);
  }
  pid_t rank_1 = 0;
  std::ifstream(fmt::format("/proc/{0}/task/{0}/children", program.process())) >> rank_1;
  ASSERT_GT(rank_1, 0);
  kill(rank_1, SIGKILL);
  const Outcome outcome = program.wait();
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_EQ(outcome.out, "");
  const std::size_t error = outcome.err.find("flashmoe: error: ");
  EXPECT_EQ(outcome.err.substr(error),
            fmt::format("flashmoe: error: rank 1 (process {}) was ended by signal 9\n", rank_1)) << outcome.err;
}

}  // namespace
}  // namespace flashmoe
