// `flashmoe bench`: sweeps, results files that go on after an interruption, baselines, bad input.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iterator>
#include <thread>

#include "cli/program.hpp"

namespace flashmoe {
namespace {

using test::flashmoe;
using test::Outcome;
using test::Program;
using test::TempFolder;
using test::words;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

const std::string kBench = "bench --backend cpu --hidden 64 --intermediate 48 --top-k 2 --warm-up 1 ";
const std::string kSmall = kBench + "--repeats 3 --experts 8 ";

nlohmann::json read(const std::filesystem::path& path) {
  std::ifstream file(path);
  return nlohmann::json::parse(file, nullptr, false);
}

std::string written(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path) << text;
  return path.string();
}

TEST(CliBench, a_list_of_tokens_is_a_sweep_with_a_row_for_each) {
  const Outcome outcome = flashmoe(kSmall + "--ranks 4 --tokens 16,64 --json");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const nlohmann::json json = outcome.json();
  EXPECT_EQ(json["schema"], "bench");
  EXPECT_EQ(json["backend"], "cpu");
  for (const char* key : {"date", "card", "driver", "commit", "commands"}) EXPECT_TRUE(json.contains(key)) << key;
  ASSERT_EQ(json["rows"].size(), 2u);
  for (const nlohmann::json& row : json["rows"]) {
    EXPECT_EQ(row["model"], "custom");
    EXPECT_EQ(row["num_ranks"], 4);
    EXPECT_EQ(row["dtype"], "bf16");
    EXPECT_EQ(row["routing"], "uniform");
    EXPECT_EQ(row["replay"], "eager");
    EXPECT_GT(row["fastest_us"], 0.0);
    EXPECT_LE(row["fastest_us"], row["latency_us"]);
    EXPECT_LE(row["latency_us"], row["p95_us"]);
    EXPECT_GT(row["bound_us"], 0.0);
    EXPECT_DOUBLE_EQ(row["fraction_of_bound"].get<double>(),
                     row["bound_us"].get<double>() / row["latency_us"].get<double>());
    EXPECT_GT(row["rel_l2"], 0.0);
    EXPECT_LE(row["rel_l2"], row["tolerance"]);
    EXPECT_EQ(row["verified_tokens"], 8);
    EXPECT_GT(row["heap_bytes"], 0);
    EXPECT_GT(row["rank_memory_bytes"], row["heap_bytes"]);
    EXPECT_GT(row["tflops_per_gpu"], 0.0);
  }
  EXPECT_EQ(json["rows"][0]["tokens_per_rank"], 16);
  EXPECT_EQ(json["rows"][1]["tokens_per_rank"], 64);
}

TEST(CliBench, bytes_are_those_of_one_call) {
  const std::string layer =
      " --backend cpu --hidden 64 --intermediate 48 --experts 8 --top-k 2 --ranks 2 --dtype fp32 --json";
  const nlohmann::json once = flashmoe("run --tokens 30" + layer).json();
  const nlohmann::json row = flashmoe("bench --repeats 4 --tokens 30" + layer).json()["rows"][0];
  for (const char* key :
       {"wire_bytes", "wire_overhead_bytes", "heap_bytes", "local_bytes", "wire_form", "result_form"}) {
    EXPECT_EQ(row[key], once[key]) << key;
  }
}

TEST(CliBench, every_combination_of_the_lists_is_measured) {
  const nlohmann::json rows = flashmoe(kBench +
                                       "--repeats 1 --experts 4,8 --ranks 1,2 --dtype fp32,fp64 --tokens 5 "
                                       "--routing uniform,all-to-one --verify-tokens 0 --name small --json")
                                  .json()["rows"];
  ASSERT_EQ(rows.size(), 16u);
  std::set<std::string> distinct;
  for (const nlohmann::json& row : rows) {
    EXPECT_EQ(row["model"], "small");
    EXPECT_TRUE(row["rel_l2"].is_null());
    distinct.insert(row["problem"].dump() + row["routing"].dump());
  }
  EXPECT_EQ(distinct.size(), 16u);
}

TEST(CliBench, calls_end_when_the_budget_is_spent_but_ten_are_timed) {
  const std::string layer = kBench + "--experts 8 --ranks 2 --tokens 512 --repeats 1000 --json ";
  const nlohmann::json row = flashmoe(layer + "--budget-ms 1 --rest-ms 1").json()["rows"][0];
  EXPECT_GE(row["repeats"], 10);
  EXPECT_LT(row["repeats"], 1000);
  EXPECT_GT(row["latency_us"], 0.0);
}

TEST(CliBench, the_short_form_names_the_same_layer_as_the_flags) {
  const nlohmann::json shorter = flashmoe("bench 16 64 48 8 2 --backend cpu --repeats 1 --json").json()["rows"];
  const nlohmann::json longer = flashmoe(kSmall + "--tokens 16 --json").json()["rows"];
  ASSERT_EQ(shorter.size(), 1u);
  EXPECT_EQ(shorter[0]["problem"], longer[0]["problem"]);
  EXPECT_EQ(shorter[0]["tokens_per_rank"], 16);
}

TEST(CliBench, ranks_may_have_uneven_counts) {
  const nlohmann::json rows = flashmoe(kSmall + "--ranks 4 --tokens-per-rank 7,0,3,1 --json").json()["rows"];
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0]["tokens_per_rank"], (std::vector<int>{7, 0, 3, 1}));
  EXPECT_TRUE(rows[0]["passed"]);
}

TEST(CliBench, a_table_and_a_csv_show_the_rows) {
  const TempFolder folder;
  const std::string csv = (folder / "rows.csv").string();
  const Outcome outcome = flashmoe(kSmall + "--ranks 2 --tokens-per-rank 9,4 --csv " + csv);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out,
              testing::AllOf(HasSubstr("bound us"), HasSubstr("of bound"), HasSubstr("[9,4]"), HasSubstr("H100")));
  std::ifstream file(csv);
  std::string headings, row, rest;
  std::getline(file, headings);
  std::getline(file, row);
  EXPECT_FALSE(std::getline(file, rest));
  EXPECT_THAT(headings, HasSubstr(",latency_us,"));
  EXPECT_THAT(headings, HasSubstr(",problem.hidden,"));
  EXPECT_THAT(row, HasSubstr(",\"[9,4]\","));
}

TEST(CliBench, a_sweep_that_was_killed_goes_on_where_it_stopped) {
  const TempFolder folder;
  const std::string path = (folder / "sweep.json").string();
  const std::string sweep = kBench + "--experts 8 --ranks 2 --tokens 8,4096 --repeats 40 --json --output " + path;
  const Program program(words(sweep));
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!std::filesystem::exists(path) && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  program.send(SIGKILL);
  program.wait();
  const nlohmann::json before = read(path);
  ASSERT_GE(before["rows"].size(), 1u) << "the file is whole whenever it is there";
  const Outcome outcome = flashmoe(sweep + " --continue");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const nlohmann::json after = read(path);
  ASSERT_EQ(after["rows"].size(), 2u);
  EXPECT_EQ(after["rows"][0], before["rows"][0]);
  EXPECT_EQ(after["rows"][1]["tokens_per_rank"], 4096);
  EXPECT_EQ(outcome.json()["rows"], after["rows"]);
}

TEST(CliBench, rows_measured_otherwise_are_measured_anew_and_every_command_is_kept) {
  const TempFolder folder;
  const std::string path = (folder / "sweep.json").string();
  const std::string sweep = kSmall + "--ranks 2 --tokens 8";
  ASSERT_EQ(flashmoe(sweep + " --output " + path).exit_code, 0);
  const nlohmann::json first = read(path);
  const std::string goes_on = " --continue --output " + path;
  const Outcome same = flashmoe(sweep + " --deadline 40 --verify-tokens 4" + goes_on);
  EXPECT_THAT(same.err, Not(HasSubstr("measured anew"))) << "neither decides the number";
  EXPECT_EQ(read(path)["rows"], first["rows"]);
  EXPECT_EQ(read(path)["commands"], first["commands"]) << "it made no row";
  const std::pair<const char*, const char*> others[] = {{" --threads 2", "threads was"},
                                                        {" --repeats 4", "repeats was 3 and is 4"},
                                                        {" --warm-up 2", "warm_up was 1 and is 2"},
                                                        {" --budget-ms 900", "budget_ms was 0 and is 900"},
                                                        {" --rest-ms 1", "rest_ms was 0 and is 1"},
                                                        {" --verify-tokens 9", "verify_tokens was 8 and is 9"}};
  for (const auto& [flags, message] : others) {
    std::filesystem::remove(path);
    const std::string plain =
        "bench --backend cpu --hidden 64 --intermediate 48 --top-k 2 --experts 8 --ranks 2 --tokens 8";
    const auto without = [&](const std::string& flag, const char* text) {
      return std::string(flags).find(flag) == std::string::npos ? text : "";
    };
    const std::string common = plain + without("--warm-up", " --warm-up 1") + without("--repeats", " --repeats 3");
    ASSERT_EQ(flashmoe(plain + " --warm-up 1 --repeats 3 --threads 1 --output " + path).exit_code, 0);
    const Outcome again = flashmoe(common + without("--threads", " --threads 1") + flags + goes_on);
    EXPECT_EQ(again.exit_code, 0) << again.err;
    EXPECT_THAT(again.err, HasSubstr("custom, 8 tokens a rank is measured anew: " + std::string(message)));
    EXPECT_EQ(read(path)["rows"].size(), 1u);
    EXPECT_EQ(read(path)["commands"].size(), 2u) << flags;
  }
}

TEST(CliBench, a_histogram_that_changed_is_another_measurement) {
  const TempFolder folder;
  const std::string counts = written(folder / "it's counts.json", "[5, 1, 1, 1, 9, 1, 1, 1]");
  const std::string path = (folder / "sweep.json").string();
  std::vector<std::string> sweep = words(kSmall + "--ranks 2 --tokens 8 --continue --output " + path + " --routing");
  sweep.push_back("histogram:" + counts);
  ASSERT_EQ(Program(sweep).wait().exit_code, 0);
  EXPECT_THAT(read(path)["commands"][0].get<std::string>(), HasSubstr("it'\\''s counts.json'"))
      << "a shell reads it back";
  written(counts, "[5, 1, 1, 1, 1, 1, 1, 9]");
  EXPECT_THAT(Program(sweep).wait().err, HasSubstr("measured anew: histogram_checksum was"));
}

TEST(CliBench, one_file_is_written_by_one_run) {
  const TempFolder folder;
  const std::string path = (folder / "sweep.json").string();
  const Program program(
      words(kBench + "--experts 8 --ranks 2 --tokens 8,4096,4097,4098 --repeats 400 --output " + path));
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!std::filesystem::exists(path) && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const Outcome second = flashmoe(kSmall + "--ranks 2 --tokens 8 --continue --output " + path);
  EXPECT_EQ(second.exit_code, 2);
  EXPECT_THAT(second.err, HasSubstr("is being written by another process: wait for its end, or give another name"));
  program.send(SIGINT);
  const Outcome interrupted = program.wait();
  EXPECT_EQ(interrupted.exit_code, 130);
  EXPECT_THAT(interrupted.err, HasSubstr("interrupted: rows measured so far are in " + path +
                                         ": 1; the same command with --continue measures the others\n"));
  EXPECT_EQ(read(path)["rows"].size(), 1u);
  EXPECT_FALSE(std::filesystem::exists(path + ".lock"));
}

TEST(CliBench, a_results_file_is_never_overwritten_unasked) {
  const TempFolder folder;
  const std::string path = (folder / "sweep.json").string();
  ASSERT_EQ(flashmoe(kSmall + "--tokens 4 --output " + path).exit_code, 0);
  const Outcome again = flashmoe(kSmall + "--tokens 4,8 --output " + path);
  EXPECT_EQ(again.exit_code, 2);
  EXPECT_THAT(again.err, HasSubstr("exists: give --continue to add what is missing, or another name"));
  EXPECT_EQ(read(path)["rows"].size(), 1u);
  const Outcome other_commit = flashmoe(kSmall + "--tokens 4,8 --continue --commit 1234 --output " + path);
  EXPECT_EQ(other_commit.exit_code, 2);
  EXPECT_THAT(other_commit.err, HasSubstr("and this is \"1234\": give another name"));
}

TEST(CliBench, a_damaged_results_file_is_refused_by_row_and_field_and_left_alone) {
  const TempFolder folder;
  const std::string path = (folder / "sweep.json").string();
  const std::string sweep = kSmall + "--ranks 2 --tokens 8,16 --output " + path;
  ASSERT_EQ(flashmoe(sweep).exit_code, 0);
  const nlohmann::json whole = read(path);
  const auto refused = [&](const nlohmann::json& damaged, const std::string& message) {
    const std::string text = damaged.dump();
    written(path, text);
    test::expect_refused(sweep + " --continue", path + ": " + message + ": correct the file");
    std::ifstream file(path);
    EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), text) << message;
  };
  struct Damage {
    const char* field;
    nlohmann::json value;
    std::string wanted;
  };
  const std::string number = "a number, 0 or more";
  const Damage damages[] = {
      {"latency_us", "soon", "a number above 0, got \"soon\""},
      {"latency_us", -3, "a number above 0, got -3"},
      {"p95_us", nullptr, "a number above 0, got null"},
      {"passed", nullptr, "true or false, got null"},
      {"passed", 1, "true or false, got 1"},
      {"bound_limiter", nullptr, "a string, got null"},
      {"baselines", 7, "an object of names and numbers above 0, got 7"},
      {"baselines", {{"other", "fast"}}, "an object of names and numbers above 0, got an object"},
      {"baseline_errors", {{"other", 3}}, "an object of names and strings, got an object"},
      {"baseline_details", 3, "an object, got 3"},
      {"settings", "none", "an object, got \"none\""},
      {"verify_tokens", "all", "a whole number, 0 or more, got \"all\""},
      {"error", 5, "a string, got 5"},
      {"model", 5, "a string, got 5"},
      {"dtype", nullptr, "a string, got null"},
      {"routing", false, "a string, got false"},
      {"backend", 1, "a string, got 1"},
      {"replay", 1, "a string, got 1"},
      {"seed", "1", "a whole number, 0 or more, got \"1\""},
      {"num_ranks", 0, "a whole number above 0, got 0"},
      {"tokens_per_rank", {1, -1}, "a whole number, or one a rank, got an array"},
      {"problem", nlohmann::json::array(), "an object, got an array"},
      {"rel_l2", "small", number + ", or null, got \"small\""},
      {"bound_us", "1", number + ", got \"1\""},
      {"fraction_of_bound", true, number + ", got true"},
      {"tflops_per_gpu", "1", number + ", got \"1\""},
      {"hbm_gb_per_s", "1", number + ", got \"1\""},
      {"wire_gb_per_s", -1, number + ", got -1"},
  };
  for (const Damage& damage : damages) {
    nlohmann::json damaged = whole;
    damaged["rows"][1][damage.field] = damage.value;
    refused(damaged, fmt::format("row 1: {} must be {}", damage.field, damage.wanted));
  }
  for (const char* field : {"latency_us", "passed", "baselines", "problem", "num_ranks", "dtype"}) {
    nlohmann::json damaged = whole;
    damaged["rows"][0].erase(field);
    written(path, damaged.dump());
    test::expect_refused(sweep + " --continue", fmt::format("{}: row 0: {} must be", path, field));
  }
  nlohmann::json failed = whole;
  failed["rows"][0]["error"] = "no memory";
  failed["rows"][0]["exit_code"] = "2";
  refused(failed, "row 0: exit_code must be a whole number, 0 or more, got \"2\"");
  for (const auto& [field, value, wanted] :
       {Damage{"commands", 3, "an array of strings, got 3"}, {"command", 3, "a string, got 3"},
        {"baseline_cards", {{"other", 3}}, "an object of names and strings, got an object"},
        {"baseline_conditions", "none", "an object, got \"none\""}}) {
    nlohmann::json damaged = whole;
    damaged[field] = value;
    refused(damaged, fmt::format("{} must be {}", field, wanted));
  }
}

TEST(CliBench, measurements_of_other_systems_stand_beside_ours) {
  const TempFolder folder;
  const std::string file =
      written(folder / "other.json", R"({"schema": "baseline", "name": "other", "card": "H200", "rows": [
      {"model": "custom", "tokens_per_rank": 16, "num_ranks": 2, "dtype": "bf16", "routing": "uniform", "latency_us": 12.5},
      {"model": "custom", "tokens_per_rank": 16, "num_ranks": 4, "dtype": "bf16", "routing": "uniform", "latency_us": 1}]})");
  const std::string sweep = kSmall + "--ranks 2 --tokens 16,32 --baselines " + file;
  const nlohmann::json json = flashmoe(sweep + " --json").json();
  EXPECT_EQ(json["baseline_cards"]["other"], "H200");
  EXPECT_EQ(json["rows"][0]["baselines"], (nlohmann::json{{"other", 12.5}}));
  EXPECT_EQ(json["rows"][1]["baselines"], nlohmann::json::object());
  EXPECT_THAT(flashmoe(sweep).out, testing::ContainsRegex("12.5 \\([0-9.]+ x ours\\)"));
}

TEST(CliBench, measurements_of_a_layer_of_other_sizes_do_not_stand_beside_ours) {
  const TempFolder folder;
  const auto beside = [&](const std::string& said) {
    const std::string file = written(
        folder / "other.json", R"({"schema": "baseline", "name": "other", "card": "H200", "rows": [{"model": "custom",
        "tokens_per_rank": 16, "num_ranks": 2, "dtype": "bf16", "routing": "uniform", "latency_us": 12.5, )" +
                                   said + "}]}");
    return !flashmoe(kSmall + "--ranks 2 --tokens 16 --json --baselines " + file)
                .json()["rows"][0]["baselines"]
                .empty();
  };
  EXPECT_TRUE(beside(R"("problem": {"hidden": 64, "top_k": 2})"));
  EXPECT_TRUE(beside(R"("num_experts": 8)"));
  EXPECT_FALSE(beside(R"("problem": {"hidden": 128})"));
  EXPECT_FALSE(beside(R"("num_experts": 4)"));
  EXPECT_FALSE(beside(R"("problem": {"activation": "relu"})"));
}

TEST(CliBench, measurements_that_say_nothing_are_refused) {
  const TempFolder folder;
  const auto refused = [&](const std::string& rows) {
    const std::string file = written(folder / "other.json", R"({"schema": "baseline", "name": "other", "card": "H200", "rows": [)" + rows + "]}");
    const Outcome outcome = flashmoe(kSmall + "--ranks 2 --tokens 16 --baselines " + file);
    EXPECT_EQ(outcome.exit_code, 2) << rows;
    EXPECT_EQ(outcome.out, "") << rows;
    return outcome.err;
  };
  const std::string start = R"({"model": "custom", "num_ranks": 2, "dtype": "bf16", "routing": "uniform")";
  EXPECT_THAT(refused(start + R"(, "tokens_per_rank": 16})"), HasSubstr("other.json: row 0: latency_us must be a number above 0, got none: correct the file"));
  EXPECT_THAT(refused(start + R"(, "tokens_per_rank": 16, "latency_us": -5})"), HasSubstr("row 0: latency_us must be a number above 0, got -5: correct the file"));
  EXPECT_THAT(refused(start + R"(, "tokens_per_rank": "a", "latency_us": 5})"), HasSubstr("row 0: tokens_per_rank must be a whole number, 0 or more, got \"a\""));
  EXPECT_THAT(refused("7"), HasSubstr("row 0 must be an object, got 7: correct the file"));
}

TEST(CliBench, folders_are_no_files) {
  const TempFolder folder;
  const std::string path = (folder / "").string();
  for (const std::string& flags : {"--baselines " + path, "--output " + path, "--continue --output " + path}) {
    const Outcome outcome = flashmoe(kSmall + "--ranks 2 --tokens 16 " + flags);
    EXPECT_EQ(outcome.exit_code, 2) << flags;
    EXPECT_THAT(outcome.err, testing::AnyOf(HasSubstr("cannot be read: give a JSON file"), HasSubstr("is a folder"))) << flags;
  }
}

TEST(CliBench, deadlines_and_layers_are_looked_at_before_anything_is_measured) {
  for (const std::string deadline : {"-1", "0", "nan"}) {
    const Outcome outcome = flashmoe(kSmall + "--tokens 16 --deadline " + deadline);
    EXPECT_EQ(outcome.exit_code, 2) << deadline;
    EXPECT_THAT(outcome.err, HasSubstr("deadline_seconds")) << deadline;
  }
  const Outcome outcome = flashmoe("bench --backend cpu");
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("give --preset NAME, or --hidden H"));
}

TEST(CliBench, a_system_that_cannot_be_timed_here_leaves_its_reason_in_the_row_and_the_run_goes_on) {
  const TempFolder folder;
  const std::string path = (folder / "sweep.json").string();
  // fp64 is nothing the scripts time, whatever GPUs and packages there are.
  const std::string sweep =
      kSmall + "--ranks 2 --tokens 16,32 --dtype fp64 --baselines torch_nccl,flashinfer,vllm_triton";
  const Outcome outcome = flashmoe(sweep + " --json --output " + path);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  const nlohmann::json rows = outcome.json()["rows"];
  ASSERT_EQ(rows.size(), 2u);
  for (const nlohmann::json& row : rows) {
    EXPECT_EQ(row["baselines"], nlohmann::json::object());
    for (const std::string name : {"torch_nccl", "flashinfer", "vllm_triton"}) {
      EXPECT_THAT(row["baseline_errors"][name].get<std::string>(), testing::StartsWith(name + " "));
    }
  }
  const nlohmann::json record = read(path);
  EXPECT_EQ(record["rows"], rows);
  EXPECT_EQ(record["baseline_cards"], nlohmann::json::object()) << "none of them answered";
  EXPECT_EQ(record["commands"], nlohmann::json{"flashmoe " + sweep}) << "without the file's folder";
  EXPECT_THAT(flashmoe(sweep).out, HasSubstr("not measured: flashinfer "));
}

TEST(CliBench, a_case_that_cannot_be_measured_leaves_the_others) {
  const TempFolder folder;
  const std::string counts = written(folder / "counts.json", "[5, 1, 1, 1, 9, 1, 1, 1]");
  const std::string path = (folder / "sweep.json").string();
  const Outcome outcome =
      flashmoe(kBench + "--repeats 2 --experts 4,8 --ranks 2 --tokens 16 --json --routing histogram:" + counts +
               " --output " + path);
  EXPECT_EQ(outcome.exit_code, 2) << "bad input";
  const nlohmann::json rows = outcome.json()["rows"];
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_THAT(rows[0]["error"].get<std::string>(), HasSubstr("must be an array of num_experts (4) numbers"));
  EXPECT_FALSE(rows[0].contains("latency_us"));
  EXPECT_TRUE(rows[1]["passed"]);
  EXPECT_EQ(read(path)["rows"], rows);
}

struct Refused {
  const char* arguments;
  const char* message;
};

TEST(CliBench, bad_input_is_one_sentence_and_exit_code_2) {
  const TempFolder folder;
  const std::string schema = written(folder / "trace.json", R"({"schema": "trace", "rows": []})");
  const std::string text = written(folder / "text.json", "no JSON");
  const Refused cases[] = {
      {"--preset nothing", "nothing"},
      {"--experts 8 --hidden 64 --intermediate 48 --top-k 2 --repeats 0", "repeats (0) must be between 1 and"},
      {"--experts 8 --hidden 64 --intermediate 48 --top-k 2 --warm-up -1", "warm-up (-1) must be between 0 and"},
      {"--experts 8 --hidden 64 --intermediate 48 --top-k 2 --rest-ms -1", "rest-ms (-1) must be between 0 and"},
      {"--experts 8 --hidden 64 --intermediate 48 --top-k 2 --budget-ms 5 --warm-up 0", "give --warm-up 1 or more"},
      {"--experts 8 --hidden 64 --intermediate 48 --top-k 2 --tokens 4 --tokens-per-rank 1,2,3,4", "give one of them"},
      {"--experts 8 --hidden 64 --intermediate 48 --top-k 2 --tokens -4", "tokens (-4) must be counts between 0 and"},
      {"--experts 8 --hidden 64 --intermediate 48 --top-k 2 --replay graph", "replay (graph) needs backend cuda"},
      {"--experts 8 --hidden 64 --intermediate 48 --top-k 2 --replay fast",
       "replay (fast) must be one of eager, graph"},
      {"--experts 8 --hidden 64 --intermediate 48 --top-k 2 --continue", "name it with --output"},
      {"--experts 8 --hidden 64 --intermediate 48 --top-k 2 --output missing/x.json", "must lie in an existing folder"},
      {"--experts 6 --hidden 64 --intermediate 48 --top-k 2", "num_experts (6) must be a multiple of num_ranks (4)"},
      {"16 64 48 8 2 --top-k 2", "leave out the flags"},
      {"16 64 48 8 2 --csv missing/x.csv", "--csv (missing/x.csv) must lie in an existing folder"},
      {"16 64 48 8 2 --csv x.json --output ./x.json", "--output and --csv both name x.json"},
      {"16 64 48 8 2 --tokens-per-rank=", "--tokens-per-rank"},
      {"--experts 8 --hidden 64 --intermediate 48 --top-k 2 --tokens 16,,32",
       "--tokens: 16,,32 has an empty item: give a value there, or leave out a comma"},
      {"--experts 8 --hidden 64 --intermediate 48 --top-k 2 --ranks=2,", "--ranks: 2, has an empty item"},
      {"--experts 8 --hidden 64 --intermediate 48 --top-k 2 --tokens 16 ,32", "--tokens: ,32 has an empty item"},
      {"--preset mixtral-8x7b --experts 8", "got --preset and --experts: give --preset NAME"},
      {"16 64 48 8", "sizes"},
      {"0 0 0 0 0", "hidden (0) must be between 1 and"},
      {"16 64 48 8 2 --baselines missing.json", "cannot be read"},
      {"16 64 48 8 2 --baselines vllm", "one of torch_nccl, flashinfer, vllm_triton"},
  };
  for (const Refused& one : cases) {
    const Outcome outcome = flashmoe("bench --backend cpu " + std::string(one.arguments));
    EXPECT_EQ(outcome.exit_code, 2) << one.arguments;
    EXPECT_THAT(outcome.err, HasSubstr(one.message)) << one.arguments;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    EXPECT_EQ(outcome.out, "");
  }
  for (const std::string flag : {"--continue --output ", "--baselines "}) {
    const Outcome other = flashmoe("bench 4 64 48 8 2 --backend cpu " + flag + schema);
    EXPECT_EQ(other.exit_code, 2);
    EXPECT_THAT(other.err, HasSubstr("got \"trace\": give another file"));
    EXPECT_EQ(flashmoe("bench 4 64 48 8 2 --backend cpu " + flag + text).exit_code, 2);
  }
}

}  // namespace
}  // namespace flashmoe
