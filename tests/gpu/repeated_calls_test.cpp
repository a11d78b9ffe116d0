// Calls repeated and timed on the GPU, eager and as a graph: the same results as single calls, and times that are some.
#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

#include "api/layer_factory.hpp"
#include "device.hpp"
#include "io/synthetic.hpp"
#include "io/synthetic_experts.hpp"
#include "io/synthetic_routing.hpp"

namespace flashmoe::test {
namespace {

constexpr std::int64_t kTokens = 200;
constexpr int kCalls = 5;

class RepeatedCalls : public testing::TestWithParam<Replay> {};

TEST_P(RepeatedCalls, leave_what_a_single_call_leaves_and_are_each_timed) {
  FLASHMOE_REQUIRE_GPUS(1);
  const Problem problem{
      .num_ranks = 2, .hidden = 256, .intermediate = 128, .num_experts = 8, .top_k = 2, .max_tokens = kTokens};
  const Group group = Group::local(2, {.backend = BackendKind::cuda});
  const auto experts = std::make_shared<GeneratedExperts>(problem, 1, std::size_t{16} << 20);
  const std::vector<RankRouting> routing = generate_routing({}, problem, 1, {kTokens, kTokens});
  std::vector<Layer> layers;
  std::vector<std::vector<std::byte>> x, single, repeated;
  for (int rank = 0; rank < 2; ++rank) {
    layers.push_back(LayerFactory::make(group, rank, problem, experts));
    x.push_back(generate_tokens(problem.dtype, 1, rank * kTokens, kTokens, problem.hidden));
    single.emplace_back(x.back().size());
    repeated.emplace_back(x.back().size(), std::byte{0xff});
  }
  const auto on_both = [](const auto& work) {
    std::jthread other([&] { work(std::size_t{1}); });
    work(std::size_t{0});
  };
  std::vector<CallStats> stats(2);
  on_both([&](std::size_t rank) {
    stats[rank] = layers[rank].forward({x[rank].data(), kTokens}, routing[rank].view(), {single[rank].data(), kTokens});
  });
  std::vector<std::unique_ptr<PreparedCalls>> calls(2);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    calls[rank] =
        LayerFactory::prepare_calls(layers[rank], {x[rank].data(), kTokens}, routing[rank].view(),
                                    {repeated[rank].data(), kTokens}, {.replay = GetParam(), .most_calls = kCalls});
  }
  for (const int count : {1, kCalls}) {
    std::vector<TimedCalls> timed(2);
    on_both([&](std::size_t rank) { timed[rank] = calls[rank]->run(count); });
    for (std::size_t rank = 0; rank < 2; ++rank) {
      EXPECT_EQ(timed[rank].us.size(), static_cast<std::size_t>(count));
      for (const double us : timed[rank].us) EXPECT_GT(us, 0.0);
      EXPECT_EQ(timed[rank].stats.wire_bytes, stats[rank].wire_bytes);
      EXPECT_GE(timed[rank].device, 0);
    }
    EXPECT_EQ(repeated, single);
  }
}

INSTANTIATE_TEST_SUITE_P(Replays, RepeatedCalls, testing::Values(Replay::eager, Replay::graph),
                         [](const auto& replay) { return std::string(to_string(replay.param)); });

}  // namespace
}  // namespace flashmoe::test
