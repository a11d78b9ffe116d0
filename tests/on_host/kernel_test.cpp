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

#include "on_host/device.hpp"
#include "on_host/kernel_on_host.hpp"
#include "on_host/kernel_scenario.hpp"

namespace flashmoe::test {
namespace {

using on_host::Ranks;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

constexpr int kCalls = 4;  // in two runs: in each ranks run ahead of each other, between them payload is poisoned
constexpr std::uint64_t kDefaultSeeds = 24;

std::uint64_t from_environment(const char* name, std::uint64_t fallback) {
  const char* value = std::getenv(name);
  return value != nullptr ? std::strtoull(value, nullptr, 10) : fallback;
}

/// Of every rank: those from `first` on, so many.
std::vector<std::vector<cpu::CallInput>> some_calls(const std::vector<std::vector<cpu::CallInput>>& calls,
                                                    std::ptrdiff_t first, std::ptrdiff_t count) {
  std::vector<std::vector<cpu::CallInput>> some;
  for (const auto& of_rank : calls) some.push_back({of_rank.begin() + first, of_rank.begin() + first + count});
  return some;
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
  KernelScenario it = make_kernel_scenario(seed, kCalls);
  SCOPED_TRACE(fmt::format("seed {}: {}", seed, it.to_string()));
  const auto experts = std::make_shared<DenseExperts>(it.problem, seed);
  Ranks ranks(it.problem, it.geometry, experts, it.options);
  const auto inputs = inputs_of(it);
  for (int first = 0; first < kCalls; first += kCalls / 2) {
    poison(ranks);
    try {
      ranks.run(some_calls(inputs, first, kCalls / 2), seed * kCalls + static_cast<std::uint64_t>(first));
    } catch (const std::exception& error) {
      FAIL() << "from call " << first << " on: " << error.what();
    }
    for (int rank = 0; rank < it.problem.num_ranks; ++rank) {
      ASSERT_EQ(ranks.failure(rank), "") << "from call " << first << " on, rank " << rank;
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
    it_ = make_kernel_scenario(0, 1);
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
    auto calls = inputs_of(it_);
    if (absent >= 0) calls[static_cast<std::size_t>(absent)].clear();
    ranks->run(calls, seed);
    return ranks;
  }

  KernelScenario it_;
  std::shared_ptr<DenseExperts> experts_;
};

TEST_P(FaultsOnHost, a_rank_that_never_comes_is_named_by_all_others) {
  for (std::uint64_t seed = 0; seed < 2; ++seed) {
    const auto ranks = run(seed, 1);
    for (const int rank : {0, 2}) EXPECT_THAT(ranks->failure(rank), HasSubstr("rank 1")) << seed;
  }
}

TEST_P(FaultsOnHost, a_wrong_id_is_named_and_all_ranks_end) {
  constexpr std::size_t kWrong = 23;
  it_.batches[0][2].topk_ids[kWrong] = 6;
  for (std::uint64_t seed = 0; seed < 2; ++seed) {
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
