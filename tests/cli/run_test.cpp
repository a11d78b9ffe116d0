// `flashmoe run` and `verify`: numbers, JSON, tables and exit codes.
#include <gmock/gmock.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <thread>
#include <utility>

#include "cli/program.hpp"
#include "io/hidden_states.hpp"
#include "io/npy.hpp"
#include "unit/problem_rules.hpp"

namespace flashmoe {
namespace {

using test::flashmoe;
using test::Outcome;
using test::Program;
using test::TempFolder;
using testing::AllOf;
using testing::HasSubstr;

const std::string kSmall = " --backend cpu --hidden 64 --intermediate 96 --experts 8 --top-k 2 ";

TEST(CliRun, json_is_one_object_with_every_key_and_nothing_else) {
  const Outcome outcome = flashmoe("run --json --tokens 16" + kSmall);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const nlohmann::json json = outcome.json();
  for (const char* key : {"backend", "engine", "num_ranks", "tokens_per_rank", "dtype", "kernel_launches", "rel_l2",
                          "max_abs_error", "heap_bytes", "local_bytes", "wire_bytes", "wire_overhead_bytes",
                          "wire_bytes_per_route_sending", "phases_us", "ranks"}) {
    EXPECT_TRUE(json.contains(key)) << key;
  }
  EXPECT_EQ(json["backend"], "cpu");
  EXPECT_EQ(json["kernel_launches"], 0);
  EXPECT_EQ(json["num_ranks"], 4);
  EXPECT_EQ(json["tokens_per_rank"], (std::vector<int>{16, 16, 16, 16}));
  EXPECT_EQ(json["verified_tokens"], 64);
  EXPECT_GT(json["rel_l2"], 0.0);
  EXPECT_LE(json["rel_l2"], json["tolerance"]);
  EXPECT_TRUE(json["passed"]);
  ASSERT_EQ(json["ranks"].size(), 4u);
  for (const char* key : {"rank", "tokens", "routes_out", "routes_in", "wire_bytes", "wire_overhead_bytes",
                          "wire_bytes_per_route_sending", "heap_bytes", "phases_us", "rel_l2"}) {
    EXPECT_TRUE(json["ranks"][0].contains(key)) << key;
  }
  EXPECT_EQ(outcome.out.back(), '\n');
  EXPECT_EQ(outcome.out.find('\n'), outcome.out.size() - 1);
}

TEST(CliVerify, right_results_of_a_narrow_expert_and_a_long_row_pass) {
  for (const std::string seed : {"33", "57", "80"}) {
    const Outcome outcome = flashmoe(
        "verify --backend cpu --hidden 8192 --intermediate 8 --experts 8 --top-k 1 --tokens 1 "
        "--ranks 1 --seed " +
        seed);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  }
}

TEST(CliRun, totals_are_the_sums_of_the_ranks) {
  const nlohmann::json json = flashmoe("verify --json --tokens 9,0,30,1 --routing zipf:1.5 --dtype fp32" + kSmall).json();
  for (const char* key : {"wire_bytes", "wire_overhead_bytes", "wire_bytes_per_route_sending"}) {
    std::uint64_t sum = 0;
    for (const auto& rank : json["ranks"]) sum += rank[key].get<std::uint64_t>();
    EXPECT_EQ(json[key], sum) << key;
    EXPECT_GT(sum, 0u) << key;
  }
  std::int64_t out = 0, in = 0;
  for (const auto& rank : json["ranks"]) {
    out += rank["routes_out"].get<std::int64_t>();
    in += rank["routes_in"].get<std::int64_t>();
  }
  EXPECT_EQ(out, 80);
  EXPECT_EQ(in, 80);
  EXPECT_LT(json["wire_bytes"], json["wire_bytes_per_route_sending"]);
}

TEST(CliRun, wire_bytes_are_what_the_routing_asks_for) {
  // All-to-one: both routes of every token go to rank 0, which gets each foreign token once and returns two results.
  const nlohmann::json json = flashmoe("verify --json --tokens 10 --routing all-to-one --dtype fp32" + kSmall).json();
  const std::uint64_t row_bytes = 64 * 4;
  EXPECT_EQ(json["wire_bytes"], 30 * row_bytes * 3);
  EXPECT_EQ(json["wire_bytes_per_route_sending"], 30 * row_bytes * 4);
  EXPECT_EQ(json["ranks"][0]["routes_in"], 80);
  EXPECT_EQ(json["ranks"][1]["routes_in"], 0);
}

TEST(CliRun, a_table_shows_what_a_user_would_want) {
  const Outcome outcome = flashmoe("verify --tokens 16" + kSmall);
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("routes out"), HasSubstr("per-route"), HasSubstr("heap"),
                                 HasSubstr("time per phase"), HasSubstr("right: relative L2"),
                                 HasSubstr("64 of 64 tokens against the fp64 reference")));
}

TEST(CliRun, uneven_and_empty_ranks_are_right) {
  for (const char* tokens : {"5,0,0,130", "0,0,0,1", "1,2,3,4"}) {
    const Outcome outcome = flashmoe("verify --json --dtype fp64 --tokens " + std::string(tokens) + kSmall);
    ASSERT_EQ(outcome.exit_code, 0) << tokens << outcome.err;
    EXPECT_LE(outcome.json()["rel_l2"], 1e-13);
  }
}

TEST(CliRun, no_tokens_anywhere_give_zeros) {
  for (const char* command : {"run", "verify"}) {
    const Outcome outcome = flashmoe(std::string(command) + " --json --tokens 0" + kSmall);
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    const nlohmann::json json = outcome.json();
    EXPECT_EQ(json["rel_l2"], 0.0);
    EXPECT_EQ(json["max_abs_error"], 0.0);
    EXPECT_EQ(json["wire_bytes"], 0);
    EXPECT_EQ(json["verified_tokens"], 0);
    EXPECT_EQ(json["ranks"][3]["rel_l2"], 0.0);
  }
}

TEST(CliRun, every_form_ring_and_dtype_is_right) {
  for (const char* flags : {"--wire-form counted --wave-tokens 16 --wave-ring 1", "--wire-form lined --dtype fp16",
                            "--wire-form counted --result-form pre_reduced --wave-tokens 8 --dtype fp32",
                            "--dtype tf32 --no-gate --activation relu2", "--dtype fp64 --activation gelu_tanh --threads 2",
                            "--batch-invariant --seed 99 --activation swiglu_clamped"}) {
    const Outcome outcome = flashmoe(std::string("verify --tokens 40 --json ") + flags + kSmall);
    EXPECT_EQ(outcome.exit_code, 0) << flags << outcome.err << outcome.out;
  }
  const nlohmann::json json =
      flashmoe("verify --json --tokens 40 --wire-form counted --result-form pre_reduced --wave-tokens 8" + kSmall).json();
  EXPECT_EQ(json["wire_form"], "counted");
  EXPECT_EQ(json["result_form"], "pre_reduced");
}

TEST(CliRun, sampling_compares_as_many_tokens_as_asked) {
  nlohmann::json json = flashmoe("verify --json --tokens 40 --verify-tokens 7" + kSmall).json();
  EXPECT_EQ(json["verified_tokens"], 7);
  json = flashmoe("run --json --tokens 40 --verify-tokens 0" + kSmall).json();
  EXPECT_EQ(json["verified_tokens"], 0);
  EXPECT_TRUE(json["rel_l2"].is_null());
  EXPECT_TRUE(json["passed"].is_null());
}

TEST(CliVerify, comparing_no_token_is_refused) {
  test::expect_refused("verify --verify-tokens 0" + kSmall,
                       "verify-tokens (0) must be 1 or more for verify: give more, or use flashmoe run");
}

TEST(CliRun, one_seed_gives_one_result_whatever_the_ranks) {
  const TempFolder folder;
  std::vector<std::string> results;
  for (const char* split : {"--ranks 1 --tokens 24", "--ranks 4 --tokens 3,0,20,1", "--ranks 2 --tokens 12 --threads 2"}) {
    const auto path = folder / ("y" + std::to_string(results.size()) + ".npy");
    const Outcome outcome =
        flashmoe("verify --json --dtype fp32 --output " + path.string() + " " + split + kSmall);
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    const NpyArray y = read_npy(path);
    EXPECT_EQ(y.shape, (std::vector<std::int64_t>{24, 64}));
    results.emplace_back(reinterpret_cast<const char*>(y.data.data()), y.data.size());
  }
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

TEST(CliRun, hidden_states_and_routing_come_from_files) {
  const TempFolder folder;
  const std::vector<float> rows(10 * 64, 0.5f);
  const std::vector<std::int32_t> ids{0, 1, 2, 3, 4, 5, 6, 7, -1, -1, 0, 0, 7, 7, 3, -1, 1, 2, 5, 4};
  write_npy(folder / "x.npy", NpyType::float32, {10, 64}, std::as_bytes(std::span(rows)));
  write_npy(folder / "ids.npy", NpyType::int32, {10, 2}, std::as_bytes(std::span(ids)));
  const std::string files = " --hidden-states " + (folder / "x.npy").string() + " --routing " + (folder / "ids.npy").string();
  const Outcome outcome =
      flashmoe("verify --json --dtype fp32 --output " + (folder / "y.safetensors").string() + files + kSmall);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.json()["tokens_per_rank"], (std::vector<int>{3, 3, 2, 2}));
  EXPECT_EQ(outcome.json()["ranks"][1]["routes_out"], 4);  // tokens 3 to 5, of which 4 has no route
  const HiddenStates y = read_hidden_states(folder / "y.safetensors", 64, DType::fp32, "output");
  EXPECT_EQ(y.num_tokens, 10);
  const auto* values = reinterpret_cast<const float*>(y.rows.data());
  EXPECT_EQ(std::vector<float>(values + 4 * 64, values + 5 * 64), std::vector<float>(64));

  EXPECT_EQ(flashmoe("verify --json --tokens 4,0,5,1" + files + kSmall).exit_code, 0);
  const Outcome wrong = flashmoe("verify --json --tokens 4" + files + kSmall);
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_THAT(wrong.err, HasSubstr("add up to 16 over 4 ranks, but"));
}

TEST(CliRun, a_nan_in_the_input_is_no_failure_of_the_layer) {
  const TempFolder folder;
  std::vector<float> rows(4 * 64, 0.5f);
  rows[64] = std::numeric_limits<float>::quiet_NaN();
  write_npy(folder / "x.npy", NpyType::float32, {4, 64}, std::as_bytes(std::span(rows)));
  const Outcome outcome =
      flashmoe("verify --json --dtype fp32 --hidden-states " + (folder / "x.npy").string() + kSmall);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err << outcome.out;
  EXPECT_EQ(outcome.json()["num_not_finite"], 0);
}

TEST(CliRun, presets_and_configs_run) {
  const TempFolder folder;
  const auto config = folder.write("config.json", R"({"model_type": "mixtral", "hidden_size": 64, "intermediate_size": 96,
      "num_local_experts": 8, "num_experts_per_tok": 2, "num_hidden_layers": 2, "hidden_act": "silu"})");
  const Outcome of_config = flashmoe("verify --json --backend cpu --tokens 8 --config " + config.string());
  ASSERT_EQ(of_config.exit_code, 0) << of_config.err;
  EXPECT_EQ(of_config.json()["problem"]["num_experts"], 8);
  const Outcome of_preset = flashmoe("run --json --backend cpu --preset olmoe-1b-7b --ranks 2 --tokens 1,0 --verify-tokens 1");
  ASSERT_EQ(of_preset.exit_code, 0) << of_preset.err;
  EXPECT_EQ(of_preset.json()["layer"], "olmoe-1b-7b");
}

TEST(CliRun, a_deadline_nobody_can_keep_ends_with_3_and_names_the_wait) {
  // Rank 1 has no experts to run and waits for rank 0, whose every tile takes longer than the deadline. There are hundreds of
  // them: rank 1 must look twice during one, which a busy machine may keep it from for a while.
  const Outcome outcome = flashmoe("run --json --backend cpu --ranks 2 --hidden 4096 --intermediate 2048 --experts 2 --top-k 1 "
                                   "--routing all-to-one --tokens 128 --deadline 0.000001");
  EXPECT_EQ(outcome.exit_code, 3) << outcome.out << outcome.err;
  EXPECT_EQ(outcome.out, "");
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("error: rank "), HasSubstr("waited 1e-06 s for")));
}

TEST(CliRun, interrupted_it_leaves_nothing_and_says_so) {
  const std::string layer = " --preset qwen3-30b-a3b --tokens 512";
  for (const std::string& command : {"run" + layer + " --output ", "verify" + layer + " --output ", "trace" + layer + " --chrome ",
                                    std::string("route --preset deepseek-v3 --tokens 4096 --output ")}) {
    const TempFolder folder;
    const auto output = folder / "y.npy";
    Program program(test::words(command + output.string() + " --json --backend cpu --ranks 2"));
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!program.handles(SIGINT) && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(300));  // it is at work
    program.send(SIGINT);
    const Outcome outcome = program.wait();
    EXPECT_EQ(outcome.exit_code, 130) << command << outcome.signal << outcome.err;
    EXPECT_EQ(outcome.out, "");
    EXPECT_THAT(outcome.err, HasSubstr("flashmoe: error: interrupted: nothing is kept\n"));
    EXPECT_TRUE(std::filesystem::is_empty(folder / ""));
  }
}

TEST(CliRun, an_output_that_cannot_be_written_is_an_error) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "this system has no /dev/full";
  const Outcome outcome = Program(test::words("run --json --tokens 1" + kSmall), "/dev/full").wait();
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_THAT(outcome.err, HasSubstr("standard output cannot be written"));
}

TEST(CliRun, tokens_of_nan_are_compared_but_do_not_count_as_verified) {
  const TempFolder folder;
  std::vector<float> rows(3 * 64, 0.5f);
  const auto json_of = [&](const std::string& command, int exit_code) {
    write_npy(folder / "x.npy", NpyType::float32, {3, 64}, std::as_bytes(std::span(rows)));
    const Outcome outcome =
        flashmoe(command + " --json --ranks 1 --dtype fp32 --hidden-states " + (folder / "x.npy").string() + kSmall);
    EXPECT_EQ(outcome.exit_code, exit_code) << command << outcome.err;
    return outcome.json();
  };
  rows[64 + 5] = std::numeric_limits<float>::quiet_NaN();
  const nlohmann::json one = json_of("verify", 0);
  EXPECT_EQ(one["passed"], true);
  EXPECT_EQ(one["verified_tokens"], 2);
  EXPECT_EQ(one["num_unmeasured"], 64);
  std::fill(rows.begin(), rows.end(), std::numeric_limits<float>::quiet_NaN());
  for (const auto& [command, exit_code] : {std::pair("verify", 1), std::pair("run", 0)}) {
    const nlohmann::json all = json_of(command, exit_code);
    EXPECT_EQ(all["passed"], nullptr);
    EXPECT_EQ(all["verified_tokens"], 0);
    EXPECT_EQ(all["rel_l2"], nullptr);
  }
}

TEST(CliRun, a_single_small_token_is_right_whatever_the_seed) {
  for (int seed = 1; seed <= 25; ++seed) {
    const Outcome outcome = flashmoe(fmt::format("verify --backend cpu --hidden 8 --intermediate 8 --experts 1 --top-k 1 "
                                                 "--ranks 1 --tokens 1 --seed {}", seed));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.out;
  }
}

}  // namespace
}  // namespace flashmoe
