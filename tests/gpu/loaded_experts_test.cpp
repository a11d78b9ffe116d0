// Experts brought to a GPU once for layers of several groups: each computes what one with experts of its own does.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "api/layer_factory.hpp"
#include "device.hpp"
#include "io/synthetic.hpp"
#include "io/synthetic_experts.hpp"
#include "io/synthetic_routing.hpp"

namespace flashmoe::test {
namespace {

TEST(LoadedExperts, serve_layers_of_any_size_and_outlive_them) {
  FLASHMOE_REQUIRE_GPUS(1);
  Problem problem{.num_ranks = 1, .hidden = 256, .intermediate = 128, .num_experts = 8, .top_k = 2, .max_tokens = 64};
  problem.down_bias = true;
  const auto experts = std::make_shared<GeneratedExperts>(problem, 1, std::size_t{16} << 20);
  const GroupOptions options{.backend = BackendKind::cuda};
  const std::shared_ptr<const LoadedExperts> loaded = LayerFactory::load(Group::local(1, options), 0, problem, experts);
  for (const std::int64_t tokens : {64, 5, 300}) {
    problem.max_tokens = tokens;
    const std::vector<RankRouting> routing = generate_routing({}, problem, 1, {tokens});
    const std::vector<std::byte> x = generate_tokens(problem.dtype, 1, 0, tokens, problem.hidden);
    const auto result_of = [&](auto source) {
      std::vector<std::byte> y(x.size(), std::byte{0xff});
      Layer layer = LayerFactory::make(Group::local(1, options), 0, problem, source);
      layer.forward({x.data(), tokens}, routing[0].view(), {y.data(), tokens});
      return y;
    };
    EXPECT_EQ(result_of(loaded), result_of(std::shared_ptr<const ExpertSource>(experts))) << tokens << " tokens";
  }
}

}  // namespace
}  // namespace flashmoe::test
