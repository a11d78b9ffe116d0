// Routings drawn as often as recorded counts say.
#include "io/histogram_file.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "flashmoe/error.hpp"
#include "io/synthetic_routing.hpp"
#include "support/temp_folder.hpp"

namespace flashmoe::test {
namespace {

std::string written(const TempFolder& folder, const std::string& text) {
  const std::string path = (folder / "counts.json").string();
  std::ofstream(path) << text;
  return path;
}

TEST(HistogramFile, experts_are_drawn_in_proportion_to_their_counts_and_never_without_any) {
  const TempFolder folder;
  const RoutingSpec spec = parse_routing_spec("histogram:" + written(folder, "[30, 0, 10, 0, 60, 0]"));
  EXPECT_EQ(spec.kind, RoutingKind::histogram);
  const Problem problem{.num_ranks = 2, .hidden = 8, .intermediate = 8, .num_experts = 6, .top_k = 1, .max_tokens = 1};
  const std::vector<RankRouting> ranks = generate_routing(spec, problem, 7, {6000, 4000});
  std::vector<int> counts(6);
  for (const RankRouting& rank : ranks) {
    for (const std::int32_t expert : rank.topk_ids) ++counts[static_cast<std::size_t>(expert)];
  }
  EXPECT_NEAR(counts[0], 3000, 200);  // 4 standard deviations of 10,000 draws are 183
  EXPECT_NEAR(counts[2], 1000, 200);
  EXPECT_NEAR(counts[4], 6000, 200);
  EXPECT_EQ(counts[1] + counts[3] + counts[5], 0);
}

TEST(HistogramFile, a_token_takes_distinct_experts) {
  const TempFolder folder;
  const RoutingSpec spec = parse_routing_spec("histogram:" + written(folder, "[1, 0, 1000000, 1]"));
  const Problem problem{.num_ranks = 1, .hidden = 8, .intermediate = 8, .num_experts = 4, .top_k = 3, .max_tokens = 1};
  const RankRouting routing = generate_routing(spec, problem, 7, {50}).front();
  for (std::size_t token = 0; token < 50; ++token) {
    EXPECT_EQ(routing.topk_ids[3 * token] + routing.topk_ids[3 * token + 1] + routing.topk_ids[3 * token + 2],
              0 + 2 + 3);
  }
}

TEST(HistogramFile, what_does_not_fit_is_refused_in_one_sentence) {
  const TempFolder folder;
  const auto message = [&](const std::string& text) {
    try {
      read_histogram(written(folder, text), 4, 2);
    } catch (const InvalidArgument& error) {
      return std::string(error.what());
    }
    return std::string("nothing");
  };
  const std::string file = "histogram (" + (folder / "counts.json").string() + ")";
  EXPECT_EQ(message("[1, 2, 3]"), file + " must be an array of num_experts (4) numbers of 0 or more, got 3 values");
  EXPECT_EQ(message("[1, 2, 3, -1]"), file + " must hold numbers of 0 or more, got -1 at [3]");
  EXPECT_EQ(message("[1, \"2\", 3, 4]"), file + " must hold numbers of 0 or more, got \"2\" at [1]");
  EXPECT_EQ(message("7"), file + " must be an array of num_experts (4) numbers of 0 or more, got 7");
  EXPECT_EQ(message("[0, 2, 0, 0]"), file +
                                         " has 1 counts above 0 and a token takes top_k (2) distinct experts: record "
                                         "more tokens");
  EXPECT_EQ(message("[1, 1, 1, 1]"), "nothing");
  EXPECT_THROW(read_histogram(folder / "missing.json", 4, 2), InvalidArgument);
  EXPECT_THROW(parse_routing_spec("histogram:" + (folder / "missing.json").string()), InvalidArgument);
}

}  // namespace
}  // namespace flashmoe::test
