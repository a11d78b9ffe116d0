// Thousands of random groups, each making its calls in the order its seed draws. FLASHMOE_SEEDS says how many (default
// below), FLASHMOE_FIRST_SEED where to start: a failing seed is replayed with FLASHMOE_FIRST_SEED=<seed> FLASHMOE_SEEDS=1.
#include <cstdlib>
#include <exception>

#include "protocol/scenario.hpp"
#include "support/sanitized.hpp"

namespace flashmoe::test {
namespace {

constexpr int kDefaultSeeds = fewer_if_sanitized(8000);
constexpr int kCalls = 4;

std::uint64_t from_environment(const char* name, std::uint64_t fallback) {
  const char* value = std::getenv(name);
  return value != nullptr ? std::strtoull(value, nullptr, 10) : fallback;
}

/// The calls in two runs on one heap: inside a run ranks run ahead of each other, between the runs all payload is poisoned.
void run_seed(std::uint64_t seed, bool narrow = false) {
  Scenario it = make_scenario(seed, kCalls);
  if (narrow) {
    it.geometry.wave_ring = 1;
    it.geometry.listed_tokens = it.geometry.wave_tokens;
  }
  SCOPED_TRACE(fmt::format("seed {}: {}", seed, it.to_string()));
  const auto experts = std::make_shared<DenseExperts>(it.problem, seed, Values::small_integers);
  const auto group = make_group(it, experts);
  const auto inputs = inputs_of(it);
  for (std::size_t half = 0; half < 2; ++half) {
    std::vector<std::vector<cpu::CallInput>> calls;
    for (const auto& of_rank : inputs) calls.push_back({of_rank.begin() + 2 * half, of_rank.begin() + 2 * half + 2});
    poison_group(*group);
    try {
      const cpu::InterleavedRun run = group->run(calls, seed * 2 + half);
      ASSERT_TRUE(run.finished) << "after " << run.num_steps << " steps:\n" << run.waits;
    } catch (const std::exception& error) {
      FAIL() << error.what();
    }
  }
  EXPECT_TRUE(all_exact(it, *experts));
}

TEST(Seeds, every_order_of_steps_and_deliveries_gives_the_exact_result) {
  const std::uint64_t first = from_environment("FLASHMOE_FIRST_SEED", 0);
  const std::uint64_t count = from_environment("FLASHMOE_SEEDS", kDefaultSeeds);
  for (std::uint64_t seed = first; seed < first + count && !HasFatalFailure() && !HasNonfatalFailure(); ++seed) {
    run_seed(seed);
  }
}

/// Every ring slot is used by every wave, of planned and of listed calls in turn: whoever does not wait at the gate is seen soon.
TEST(Seeds, with_rings_of_one_wave_and_lists_from_ids_results_are_exact) {
  const std::uint64_t first = from_environment("FLASHMOE_FIRST_SEED", 0);
  const std::uint64_t count = from_environment("FLASHMOE_SEEDS", kDefaultSeeds / 4);
  for (std::uint64_t seed = first; seed < first + count && !HasFatalFailure() && !HasNonfatalFailure(); ++seed) {
    run_seed(seed, true);
  }
}

}  // namespace
}  // namespace flashmoe::test
