// `flashmoe trace`: timelines of the emulator's actors, as files and as numbers.
#include <gmock/gmock.h>

#include <fstream>
#include <iterator>
#include <map>
#include <set>

#include "cli/program.hpp"

namespace flashmoe {
namespace {

using test::flashmoe;
using test::Outcome;
using test::TempFolder;
using testing::HasSubstr;
using testing::StartsWith;

const std::string kTrace = "trace --backend cpu --hidden 64 --intermediate 48 --experts 8 --top-k 2 ";

std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(CliTrace, the_timeline_of_every_actor_opens_in_perfetto_and_adds_up_to_the_summary) {
  const TempFolder folder;
  const Outcome outcome =
      flashmoe(kTrace + "--ranks 4 --tokens 40,0,64,3 --json --chrome " + (folder / "chrome.json").string());
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const nlohmann::json summary = outcome.json()["summary"];
  const nlohmann::json events = nlohmann::json::parse(text_of(folder / "chrome.json"))["traceEvents"];
  std::map<std::pair<int, int>, std::string> actors;
  std::map<std::pair<int, int>, double> end_us;
  std::map<std::string, double> task_us;
  double wait_us = 0;
  for (const nlohmann::json& event : events) {
    if (event["ph"] == "M") {
      if (event["name"] == "thread_name") actors[{event["pid"], event["tid"]}] = event["args"]["name"];
      continue;
    }
    ASSERT_EQ(event["ph"], "X");
    const std::pair<int, int> actor{event["pid"], event["tid"]};
    ASSERT_TRUE(actors.contains(actor));
    EXPECT_GE(event["ts"].get<double>(), end_us[actor] - 1e-6) << "spans of one actor follow one another";
    EXPECT_GE(event["dur"], 0.0);
    end_us[actor] = event["ts"].get<double>() + event["dur"].get<double>();
    if (event["cat"] == "wait") wait_us += event["dur"].get<double>();
    if (event["name"] == "up" || event["name"] == "down") {
      EXPECT_THAT(actors[actor], StartsWith("processor"));
      task_us[event["name"]] += event["dur"].get<double>();
    }
  }
  EXPECT_EQ(end_us.size(), actors.size()) << "every actor did something";
  std::set<std::string> kinds;
  for (const auto& [actor, name] : actors) kinds.insert(std::to_string(actor.first) + name.substr(0, name.find(' ')));
  EXPECT_EQ(kinds.size(), 4u * 5u);
  EXPECT_NEAR(summary["busy_us"]["processor.up"], task_us["up"], 1e-3 + 1e-9 * task_us["up"]);
  EXPECT_NEAR(summary["busy_us"]["processor.down"], task_us["down"], 1e-3 + 1e-9 * task_us["down"]);
  EXPECT_GT(task_us["up"], 0);
  double summed_waits = 0;
  for (const auto& wait : summary["wait_us"].items()) summed_waits += wait.value().get<double>();
  EXPECT_NEAR(summed_waits, wait_us, 1e-2 + 1e-9 * wait_us);
  EXPECT_EQ(summary["num_dropped"], 0);
  for (const char* share : {"overlap_efficiency", "resident_share", "busy_share"}) {
    EXPECT_GE(summary[share], 0.0) << share;
    EXPECT_LE(summary[share], 1.0) << share;
  }
  EXPECT_GE(summary["resident_share"], summary["busy_share"]);
}

TEST(CliTrace, every_task_of_the_call_is_there_once) {
  const TempFolder folder;
  // 1 rank, 2 experts with 32 rows each: one m-block an expert, 48 columns in one up tile and 64 in one down tile.
  const Outcome outcome = flashmoe(
      "trace --backend cpu --hidden 64 --intermediate 48 --experts 2 --top-k 2 --ranks 1 --tokens 32 "
      "--json --chrome " +
      (folder / "chrome.json").string());
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  std::map<std::string, int> counts;
  const nlohmann::json events = nlohmann::json::parse(text_of(folder / "chrome.json"))["traceEvents"];
  for (const nlohmann::json& event : events) {
    if (event["ph"] == "X") ++counts[event["name"]];
  }
  EXPECT_EQ(counts["up"], 2);
  EXPECT_EQ(counts["down"], 2);
}

TEST(CliTrace, the_picture_stands_alone_and_the_summary_is_a_results_file) {
  const TempFolder folder;
  const Outcome outcome = flashmoe(kTrace + "--ranks 2 --tokens 64 --svg " + (folder / "trace.svg").string() +
                                   " --summary " + (folder / "summary.json").string());
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, testing::AllOf(HasSubstr("overlap efficiency"), HasSubstr("utilisation"),
                                          HasSubstr("processor.up"), HasSubstr("results")));
  const std::string svg = text_of(folder / "trace.svg");
  EXPECT_THAT(svg, testing::AllOf(StartsWith("<svg xmlns=\"http://www.w3.org/2000/svg\""), HasSubstr("rank 1"),
                                  HasSubstr("processor 0"), HasSubstr("<title>up"), testing::EndsWith("</svg>\n")));
  EXPECT_THAT(svg, testing::Not(HasSubstr("href")));
  const nlohmann::json summary = nlohmann::json::parse(text_of(folder / "summary.json"));
  EXPECT_EQ(summary["schema"], "trace");
  EXPECT_TRUE(summary["passed"]);
  EXPECT_GT(summary["summary"]["wall_us"], 0.0);
}

TEST(CliTrace, a_buffer_that_fills_says_so_and_the_results_stay_right) {
  const Outcome outcome = flashmoe(kTrace + "--ranks 2 --tokens 64 --records 2");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("spans did not fit, so this is the beginning of the call alone: raise --records"));
  const nlohmann::json json = flashmoe(kTrace + "--ranks 2 --tokens 64 --records 2 --json").json();
  EXPECT_GT(json["summary"]["num_dropped"], 0);
  EXPECT_TRUE(json["passed"]);
}

TEST(CliTrace, while_a_rank_is_late_the_others_do_all_that_does_not_need_it) {
  for (const char* form : {"lined", "counted"}) {
    const Outcome outcome = flashmoe(kTrace + "--json --late-rank 1 --late-us 300000 --wire-form " + form);
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    const nlohmann::json late = outcome.json()["late"];
    EXPECT_EQ(late["rank"], 1);
    EXPECT_EQ(late["us"], 300000.0);
    ASSERT_EQ(late["others"].size(), 3u);
    for (const nlohmann::json& other : late["others"]) {
      EXPECT_GE(other["late_start_us"], 100000.0);
      EXPECT_GE(other["tokens_us"].get<double>(), other["late_start_us"].get<double>() - 1000);
      EXPECT_LT(other["last_tile_us"], other["tokens_us"]) << "nothing was left for so long";
      EXPECT_GE(other["m_blocks"], 2) << "of each of its experts one, at least";
      EXPECT_GE(other["up_tasks"], other["m_blocks"]);
      EXPECT_GE(other["down_tasks"], other["m_blocks"]);
      EXPECT_EQ(other["m_blocks_left"], 0);
    }
  }
  const Outcome prompt = flashmoe(kTrace + "--json");
  EXPECT_FALSE(prompt.json().contains("late"));
}

TEST(CliTrace, a_results_file_of_another_kind_is_never_replaced) {
  const TempFolder folder;
  const std::string sweep = (folder / "sweep.json").string();
  ASSERT_EQ(flashmoe("bench 4 64 48 8 2 --backend cpu --repeats 1 --output " + sweep).exit_code, 0);
  const std::string before = text_of(sweep);
  const std::string summary = (folder / "trace.json").string();
  ASSERT_EQ(flashmoe(kTrace + "--ranks 1 --tokens 4 --summary " + summary).exit_code, 0);
  const std::string refusal = " must not replace a results file of another kind, got ";
  for (const std::string flag : {"--summary", "--svg", "--chrome"}) {
    test::expect_refused(kTrace + flag + " " + sweep, flag + " (" + sweep + ")" + refusal + "\"bench\"");
  }
  test::expect_refused(kTrace + "--svg " + summary, refusal + "\"trace\": give another file");
  test::expect_refused("bench 4 64 48 8 2 --backend cpu --csv " + sweep, "--csv (" + sweep + ")" + refusal);
  EXPECT_EQ(text_of(sweep), before);
  EXPECT_EQ(flashmoe(kTrace + "--ranks 1 --tokens 8 --summary " + summary).exit_code, 0) << "its own kind is";
  EXPECT_EQ(nlohmann::json::parse(text_of(summary))["tokens_per_rank"], std::vector<int>{8});
}

TEST(CliTrace, bad_input_is_refused) {
  const std::pair<const char*, const char*> cases[] = {
      {"--records 0", "records (0) must be between 1 and"},
      {"--svg missing/x.svg", "must lie in an existing folder"},
      {"--output y.npy", "trace has no flag --output"},
      {"--svg x --chrome ./x", "--chrome and --svg both name x"},
      {"--routing nothing", "routing (nothing) must be"},
      {"--late-rank 1", "--late-rank requires --late-us"},
      {"--late-us 100", "--late-us requires --late-rank"},
      {"--late-rank 4 --late-us 100", "--late-rank (4) must be in 0..3"},
      {"--late-rank -1 --late-us 100", "--late-rank (-1) must be in 0..3"},
      {"--late-rank 0 --late-us 100 --ranks 1", "--late-rank (0) needs a rank that waits for it"},
      {"--late-rank 1 --late-us 0", "--late-us (0) must be above 0 and below 30000000"},
      {"--late-rank 1 --late-us nan", "--late-us (nan) must be above 0 and below"},
      {"--late-rank 1 --late-us 2e6 --deadline 2", "--late-us (2000000) must be above 0 and below 2000000"},
  };
  for (const auto& [flags, message] : cases) {
    const Outcome outcome = flashmoe(kTrace + flags);
    EXPECT_EQ(outcome.exit_code, 2) << flags;
    EXPECT_THAT(outcome.err, HasSubstr(message));
  }
}

}  // namespace
}  // namespace flashmoe
