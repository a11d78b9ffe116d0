// The Hopper kernel without a GPU: random groups whose blocks run as fibers, in orders drawn from a seed.
// FLASHMOE_SEEDS says how many, FLASHMOE_FIRST_SEED where to start: a failing seed is replayed with
// FLASHMOE_FIRST_SEED=<seed> FLASHMOE_SEEDS=1.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <memory>
#include <vector>

#include "cuda/hopper/tile_shape.hpp"
#include "on_host/device.hpp"
#include "on_host/kernel_on_host.hpp"
#include "protocol/scenario.hpp"

namespace flashmoe::test {
namespace {

using on_host::Ranks;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

constexpr int kCalls = 3;
constexpr std::uint64_t kDefaultSeeds = 50;

std::uint64_t from_environment(const char* name, std::uint64_t fallback) {
  const char* value = std::getenv(name);
  return value != nullptr ? std::strtoull(value, nullptr, 10) : fallback;
}

struct KernelScenario : Scenario {
  on_host::Options options;

  std::string to_string() const {
    return fmt::format("{}blocks {} pairs {} down tiles {}/{} early push {} early cut {} decode rows {}",
                       Scenario::to_string(), options.num_blocks, options.pairs, options.down_tiles,
                       options.halved_down_tiles, options.early_push, options.early_cut, options.decode_rows);
  }
};

/// Rings and waves that the planner would never choose, but the kernel's own tile; up to three m-blocks an expert.
KernelScenario make_kernel_scenario(std::uint64_t seed) {
  Dice dice(seed);
  KernelScenario it;
  Problem& p = it.problem;
  p.num_ranks = dice.pick({1, 1, 1, 2, 2, 3, 7, 8});
  it.options.pairs = dice.one_in(3);
  p.num_experts =
      p.num_ranks * dice.between(1, it.options.pairs ? 2 : 5);  // who share weights have several m-blocks an expert
  p.top_k = std::min(dice.between(1, 4), p.num_experts);
  p.hidden = dice.pick({8, 16, 128, 264});
  p.intermediate = dice.pick({8, 16, 72, 200});
  p.dtype = dice.pick({DType::bf16, DType::fp16});
  p.activation = dice.pick({Activation::silu, Activation::relu});
  p.gated = dice.one_in(2);
  p.up_bias = dice.one_in(4);
  p.down_bias = dice.one_in(4);
  p.weight_on_input = dice.one_in(5);
  p.wire_form = dice.pick({WireForm::counted, WireForm::counted, WireForm::automatic});
  if (p.wire_form == WireForm::automatic && dice.one_in(2)) p.hidden = 520;  // products of four tiles
  p.result_form = dice.one_in(4) ? ResultForm::pre_reduced : ResultForm::per_route;
  Geometry& g = it.geometry = small_geometry(p, dice);
  g.tile = cuda_backend::hopper::tile_shape(p.gated);
  g.wave_tokens = dice.pick({3, 16, 40, 80, 300});
  g.listed_tokens = std::min(dice.pick({0, 4, 100, 300}), g.wave_tokens);
  g.num_m_blocks = dice.pick({1, 3, 8, 40});
  const int most_tokens = p.num_ranks > 3 ? 24 : p.num_ranks > 1 ? 100 : dice.pick({136, 300});
  p.max_tokens = g.max_tokens = std::min(3 * g.wave_tokens, most_tokens);
  g.lined_tokens = p.wire_form == WireForm::counted ? 0 : static_cast<int>(p.max_tokens) / dice.between(1, 2);
  it.options.num_blocks = p.num_ranks > 3 ? dice.between(3, 4) : dice.between(3, 8);
  if (it.options.pairs) it.options.num_blocks += it.options.num_blocks % 2;
  if (dice.one_in(2)) {
    it.options.down_tiles = dice.pick({4, 8});
    it.options.halved_down_tiles = dice.pick({0, it.options.down_tiles / 2});
  }
  it.options.early_push = !dice.one_in(4);
  it.options.early_cut = !dice.one_in(4);
  it.options.decode_rows = dice.pick({0, 16, 96});
  it.options.flush_after_idle_steps = dice.pick({1, 8, 100});
  const Routing routings[] = {Routing::distinct,   Routing::any,       Routing::any,
                              Routing::all_to_one, Routing::last_rank, Routing::masked};
  for (int call = 0; call < kCalls; ++call) {
    const bool lined = g.lined_tokens > 0 && dice.one_in(2);
    it.max_tokens.push_back(lined ? dice.between(1, g.lined_tokens) : p.max_tokens);
    const Routing routing = routings[dice.below(6)];
    const std::int64_t most = dice.one_in(3) ? std::min<std::int64_t>(it.max_tokens.back(), 2) : it.max_tokens.back();
    std::vector<Batch> batches;
    for (int rank = 0; rank < p.num_ranks; ++rank) {
      batches.push_back(make_batch(p, draw_tokens(it, most, dice),
                                   seed * 4096 + static_cast<std::uint64_t>(call * 64 + rank), routing));
    }
    it.batches.push_back(std::move(batches));
  }
  return it;
}

std::vector<cpu::CallInput> inputs_of_call(const std::vector<std::vector<cpu::CallInput>>& inputs, std::size_t call) {
  std::vector<cpu::CallInput> of_call;
  for (const auto& of_rank : inputs) of_call.push_back(of_rank[call]);
  return of_call;
}

void poison(Ranks& ranks) {
  poison_heap(ranks.heap());
  for (int rank = 0; rank < ranks.heap().layout().geometry.num_ranks; ++rank) poison_scratch(ranks.context(rank));
}

void expect_right(const Scenario& it, const ExpertSource& experts) {
  for (std::size_t call = 0; call < it.batches.size(); ++call) {
    for (std::size_t rank = 0; rank < it.batches[call].size(); ++rank) {
      const Batch& batch = it.batches[call][rank];
      const auto wanted = reference::layer(it.problem, experts, batch.x_view(), batch.routing());
      EXPECT_LE(error_in_bars(it.problem, batch, wanted), 2.0)
          << "call " << call << " rank " << rank;  // of few values errors scatter
    }
  }
}

/// What the ranks of all runs together have done.
struct Counts {
  unsigned long long early_cuts = 0, opened_tasks = 0, shared_tasks = 0;
};

void run_seed(std::uint64_t seed, Counts& counts) {
  KernelScenario it = make_kernel_scenario(seed);
  SCOPED_TRACE(fmt::format("seed {}: {}", seed, it.to_string()));
  const auto experts = std::make_shared<DenseExperts>(it.problem, seed);
  Ranks ranks(it.problem, it.geometry, experts, it.options);
  const auto inputs = inputs_of(it);
  for (std::size_t call = 0; call < kCalls; ++call) {
    poison(ranks);
    try {
      ranks.run(inputs_of_call(inputs, call), seed * kCalls + call);
    } catch (const std::exception& error) {
      FAIL() << "call " << call << ": " << error.what();
    }
    for (int rank = 0; rank < it.problem.num_ranks; ++rank) {
      ASSERT_EQ(ranks.failure(rank), "") << "call " << call << " rank " << rank;
    }
  }
  expect_right(it, *experts);
  for (int rank = 0; rank < it.problem.num_ranks; ++rank) {
    counts.early_cuts += ranks.state(rank).early_cuts;
    counts.opened_tasks += ranks.state(rank).opened_tasks;
    counts.shared_tasks += ranks.state(rank).shared_tasks;
  }
}

TEST(KernelOnHost, every_order_of_its_threads_gives_the_right_result) {
  const std::uint64_t first = from_environment("FLASHMOE_FIRST_SEED", 0);
  const std::uint64_t count = from_environment("FLASHMOE_SEEDS", kDefaultSeeds);
  Counts counts;
  for (std::uint64_t seed = first; seed < first + count && !HasFatalFailure() && !HasNonfatalFailure(); ++seed) {
    run_seed(seed, counts);
  }
  if (count < kDefaultSeeds) return;  // they need not have done everything
  EXPECT_THAT(on_host::Device::done(),
              UnorderedElementsAre("boxes for both", "boxes of 64", "boxes of 128", "boxes of 256", "products of 8",
                                   "products of 16", "products of 32", "products of 80", "products of 96",
                                   "products of 128", "products of 144", "products of 256", "tagged packets"));
  EXPECT_GT(counts.early_cuts, 0u);
  EXPECT_GT(counts.opened_tasks, 0u);
  EXPECT_GT(counts.shared_tasks, 0u);
}

/// One call of three ranks in each form.
class FaultsOnHost : public testing::TestWithParam<int> {
 protected:
  FaultsOnHost() {
    it_ = make_kernel_scenario(0);
    Problem& p = it_.problem;
    p = {.num_ranks = 3,
         .hidden = 16,
         .intermediate = 24,
         .num_experts = 6,
         .top_k = 2,
         .max_tokens = 40,
         .dtype = DType::bf16,
         .activation = Activation::relu,
         .gated = false};
    p.result_form = ResultForm::per_route;
    p.wire_form = GetParam() == 2 ? WireForm::automatic : WireForm::counted;
    Dice dice(1);
    Geometry& g = it_.geometry = small_geometry(p, dice);
    g.tile = cuda_backend::hopper::tile_shape(p.gated);
    g.wave_tokens = 40;
    g.listed_tokens = GetParam() == 1 ? 40 : 0;
    g.lined_tokens = GetParam() == 2 ? 40 : 0;
    it_.options = {.deadline_seconds = 2e-4};
    it_.max_tokens = {40};
    it_.batches.resize(1);
    it_.batches[0].clear();
    for (std::uint64_t rank = 0; rank < 3; ++rank) {
      it_.batches[0].push_back(make_batch(p, 40, rank, Routing::distinct, Values::small_integers));
    }
    experts_ = std::make_shared<DenseExperts>(p, 1, Values::small_integers);
  }

  /// Ranks that have made the call.
  std::unique_ptr<Ranks> run(std::uint64_t seed, int absent) {
    auto ranks = std::make_unique<Ranks>(it_.problem, it_.geometry, experts_, it_.options);
    ranks->run(inputs_of_call(inputs_of(it_), 0), seed, absent);
    return ranks;
  }

  KernelScenario it_;
  std::shared_ptr<DenseExperts> experts_;
};

TEST_P(FaultsOnHost, a_rank_that_never_comes_is_named_by_all_others) {
  for (std::uint64_t seed = 0; seed < 3; ++seed) {
    const auto ranks = run(seed, 1);
    for (const int rank : {0, 2}) EXPECT_THAT(ranks->failure(rank), HasSubstr("rank 1")) << seed;
  }
}

TEST_P(FaultsOnHost, a_wrong_id_is_named_and_all_ranks_end) {
  constexpr std::size_t kWrong = 23;
  it_.batches[0][2].topk_ids[kWrong] = 6;
  for (std::uint64_t seed = 0; seed < 3; ++seed) {
    const auto ranks = run(seed, -1);
    EXPECT_THAT(ranks->failure(2), HasSubstr("topk_ids[11][1] of rank 2 is 6")) << seed;
    for (const int rank : {0, 1}) EXPECT_NE(ranks->failure(rank), "") << seed;
  }
}

std::string name_of_form(const testing::TestParamInfo<int>& form) {
  const char* const names[] = {"planned", "listed", "lined"};
  return names[form.param];
}
INSTANTIATE_TEST_SUITE_P(Forms, FaultsOnHost, testing::Values(0, 1, 2), name_of_form);

}  // namespace
}  // namespace flashmoe::test
