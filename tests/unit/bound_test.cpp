// The lower bound: the published table row by row, actual routings counted by hand, and bounds that must hold for any.
#include "planner/bound.hpp"

#include <gtest/gtest.h>

#include <array>
#include <fstream>
#include <map>
#include <sstream>
#include <string>

#include "flashmoe/model_config.hpp"
#include "io/synthetic_routing.hpp"

namespace flashmoe {
namespace {

/// Half a unit of the table's last digit, and what the table's own rounding of inputs may add.
constexpr double kPrinted = 0.0501;

const std::map<std::string, std::string> kPresets = {
    {"Mixtral-8x7B", "mixtral-8x7b"}, {"Qwen3-30B-A3B", "qwen3-30b-a3b"}, {"DeepSeek-V3", "deepseek-v3"},
    {"Llama4-Scout", "llama4-scout"}, {"gpt-oss-120b", "gpt-oss-120b"},   {"thesis", "thesis"}};

TEST(Bound, every_row_of_the_roofline_table_is_reproduced_to_its_printed_precision) {
  std::ifstream file("fixtures/roofline_ep4_bf16.csv");
  std::string line;
  std::getline(file, line);  // a comment
  std::getline(file, line);  // headings
  int num_rows = 0;
  while (std::getline(file, line)) {
    SCOPED_TRACE(line);
    std::istringstream cells(line);
    std::array<std::string, 10> cell;
    for (std::string& text : cell) std::getline(cells, text, ',');
    const std::int64_t tokens = std::stoll(cell[1]);
    const Problem problem = make_problem(model_preset(kPresets.at(cell[0])), 4, tokens, DType::bf16);
    const RankWork work = expected_work(problem, tokens);
    const RankBound bound = rank_bound(problem, work, BoundRates::h100(DType::bf16));
    EXPECT_NEAR(work.routes_in / problem.num_local_experts(), std::stod(cell[2]), kPrinted);
    EXPECT_NEAR(bound.compute_us, std::stod(cell[3]), kPrinted);
    EXPECT_NEAR(bound.weights_us, std::stod(cell[4]), kPrinted);
    EXPECT_NEAR(bound.hbm_us, std::stod(cell[5]), kPrinted);
    EXPECT_NEAR(bound.wire_per_route_us, std::stod(cell[6]), kPrinted);
    EXPECT_NEAR(bound.wire_us, std::stod(cell[7]), kPrinted);
    EXPECT_NEAR(bound.us(), std::stod(cell[8]), kPrinted);
    EXPECT_EQ(bound.limiter(), cell[9] == "HBM" ? "hbm" : "compute");
    ++num_rows;
  }
  EXPECT_EQ(num_rows, 24);
}

TEST(Bound, an_actual_routing_is_counted_by_hand) {
  // 2 ranks with 2 experts each; rank 0 has tokens {0,1}, {2,3}, {0,2}, rank 1 has {1,masked}, {3,3}.
  const Problem problem{.num_ranks = 2, .hidden = 8, .intermediate = 16, .num_experts = 4, .top_k = 2, .max_tokens = 3};
  const std::vector<std::int32_t> first{0, 1, 2, 3, 0, 2};
  const std::vector<std::int32_t> second{1, -1, 3, 3};
  const std::array<RoutingView, 2> routing{RoutingView{first.data(), nullptr}, RoutingView{second.data(), nullptr}};
  const std::array<std::int64_t, 2> tokens{3, 2};
  const std::vector<RankWork> work = count_work(problem, routing, tokens);
  ASSERT_EQ(work.size(), 2u);
  EXPECT_EQ(work[0].tokens, 3);
  EXPECT_EQ(work[0].routes_out, 6);
  EXPECT_EQ(work[0].routes_in, 4);
  EXPECT_EQ(work[0].remote_routes_out, 3);
  EXPECT_EQ(work[0].remote_routes_in, 1);
  EXPECT_EQ(work[0].copies_in, 3);
  EXPECT_EQ(work[0].remote_copies_out, 2);
  EXPECT_EQ(work[0].remote_copies_in, 1);
  EXPECT_EQ(work[0].touched_experts, 2);
  EXPECT_EQ(work[1].routes_out, 3);
  EXPECT_EQ(work[1].routes_in, 5);
  EXPECT_EQ(work[1].copies_in, 3);
  EXPECT_EQ(work[1].remote_copies_out, 1);
  EXPECT_EQ(work[1].remote_copies_in, 2);

  const RankBound bound = rank_bound(problem, work[0], {.flops = 1, .memory_bytes = 1, .wire_bytes = 1});
  EXPECT_EQ(bound.compute_us, 4 * 2.0 * 8 * 48);  // 4 routes, 32 gate and up columns and 16 of down
  EXPECT_EQ(bound.weights_us, 2 * 2.0 * 8 * 48);  // 2 experts in bf16
  EXPECT_EQ(bound.wire_us, (2 + 1) * 16.0);       // 2 tokens out and 1 result, 16 bytes a row
  EXPECT_EQ(bound.wire_per_route_us, (3 + 1) * 16.0);
  EXPECT_EQ(bound.hbm_us, bound.weights_us + (2 * 3 + 2 * 6 + 3) * 16.0 + 2 * 4 * 32.0);
}

TEST(Bound, all_to_one_is_slower_by_as_many_times_as_there_are_ranks) {
  Problem problem = make_problem(model_preset("qwen3-30b-a3b"), 4, 4096, DType::bf16);
  const auto bound_of = [&](const char* routing) {
    const std::vector<std::int64_t> tokens(4, problem.max_tokens);
    const std::vector<RankRouting> ranks = generate_routing(parse_routing_spec(routing), problem, 3, tokens);
    std::vector<RoutingView> views;
    for (const RankRouting& rank : ranks) views.push_back(rank.view());
    const LayerBound bound = layer_bound(problem, count_work(problem, views, tokens), BoundRates::h100(DType::bf16));
    EXPECT_EQ(bound.flops, 4.0 * 4096 * problem.top_k * flops_per_route(problem)) << "every route is computed once";
    return bound.rank.us();
  };
  const double uniform = bound_of("uniform");
  EXPECT_NEAR(uniform, rank_bound(problem, expected_work(problem, 4096), BoundRates::h100(DType::bf16)).us(),
              0.05 * uniform);
  EXPECT_NEAR(bound_of("all-to-one"), 4 * uniform, 0.1 * uniform);
}

TEST(Bound, a_card_has_its_own_rates) {
  const BoundCard h100 = bound_card("NVIDIA H100 80GB HBM3", DType::bf16);
  const BoundCard h200 = bound_card("NVIDIA H200", DType::bf16);
  EXPECT_EQ(h100.name, "H100 SXM");
  EXPECT_EQ(h200.name, "H200 SXM");
  EXPECT_EQ(h200.rates.flops, h100.rates.flops);
  EXPECT_EQ(h200.rates.wire_bytes, h100.rates.wire_bytes);
  EXPECT_NEAR(h200.rates.memory_bytes / h100.rates.memory_bytes, 4.8 / 3.35, 0.01);
}

TEST(Bound, one_rank_sends_nothing_and_no_tokens_cost_nothing) {
  const Problem problem = make_problem(model_preset("olmoe-1b-7b"), 1, 512, DType::bf16);
  EXPECT_EQ(rank_bound(problem, expected_work(problem, 512), BoundRates::h100(DType::bf16)).wire_us, 0);
  const RankBound nothing = rank_bound(problem, expected_work(problem, 0), BoundRates::h100(DType::bf16));
  EXPECT_EQ(nothing.us(), 0);
}

}  // namespace
}  // namespace flashmoe
