#include "core/counter_rng.hpp"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <set>
#include <vector>

namespace flashmoe {
namespace {

TEST(CounterRng, MixerGivesThePublishedSequenceOfSplitmix64) {
  constexpr std::uint64_t step = 0x9e3779b97f4a7c15ull;
  static_assert(mix64(1 * step) == 0xe220a8397b1dcdafull);
  static_assert(mix64(2 * step) == 0x6e789e6aa1b965f4ull);
  static_assert(mix64(3 * step) == 0x06c45d188009454full);
}

// Another value here changes every synthetic layer, and with it every number measured on one.
TEST(CounterRng, ValuesOfAStreamNeverChange) {
  const CounterRng rng(1, 2);
  EXPECT_EQ(rng.bits(0), 0xfa3df356a61c5541ull);
  EXPECT_EQ(rng.bits(1000000), 0xbba1d33f1eb22320ull);
}

TEST(CounterRng, UniformHasTheMomentsOfAUniform) {
  const CounterRng rng(3, 0);
  constexpr int count = 200000;
  double sum = 0.0, squares = 0.0, neighbours = 0.0;
  for (std::uint64_t i = 0; i < count; ++i) {
    const double value = rng.uniform(i);
    ASSERT_GE(value, 0.0);
    ASSERT_LT(value, 1.0);
    sum += value;
    squares += value * value;
    neighbours += (value - 0.5) * (rng.uniform(i + 1) - 0.5);
  }
  const double mean = sum / count;
  EXPECT_NEAR(mean, 0.5, 5 * std::sqrt(1.0 / 12 / count));
  EXPECT_NEAR(squares / count - mean * mean, 1.0 / 12, 1e-3);
  EXPECT_NEAR(neighbours / count, 0.0, 5.0 / 12 / std::sqrt(count));
}

TEST(CounterRng, EveryBitIsSetHalfTheTime) {
  const CounterRng rng(4, 0);
  constexpr int count = 20000;
  std::array<int, 64> set = {};
  for (std::uint64_t i = 0; i < count; ++i) {
    for (int bit = 0; bit < 64; ++bit) set[bit] += static_cast<int>(rng.bits(i) >> bit & 1);
  }
  for (int bit = 0; bit < 64; ++bit) EXPECT_NEAR(set[bit], count / 2, 5 * std::sqrt(count) / 2) << bit;
}

TEST(CounterRng, BelowCoversItsRangeEvenly) {
  const CounterRng rng(5, 0);
  constexpr int bound = 7;
  constexpr int count = 70000;
  std::array<int, bound> hits = {};
  for (std::uint64_t i = 0; i < count; ++i) ++hits.at(rng.below(i, bound));
  for (const int hit : hits) EXPECT_NEAR(hit, count / bound, 5 * std::sqrt(count / bound));
  for (std::uint64_t i = 0; i < 100; ++i) EXPECT_EQ(rng.below(i, 1), 0u);
}

TEST(CounterRng, NeighbouringSeedsAndStreamsShareNothing) {
  std::set<std::uint64_t> words;
  constexpr std::uint64_t count = 20;
  for (std::uint64_t seed = 0; seed < count; ++seed) {
    for (std::uint64_t stream = 0; stream < count; ++stream) {
      for (std::uint64_t i = 0; i < count; ++i) words.insert(CounterRng(seed, stream).bits(i));
    }
  }
  EXPECT_EQ(words.size(), count * count * count);
  int differing = 0;
  for (std::uint64_t i = 0; i < 1000; ++i) {
    differing += std::popcount(CounterRng(1, 1).bits(i) ^ CounterRng(1, 2).bits(i));
  }
  EXPECT_NEAR(differing, 32000, 5 * std::sqrt(64000) / 2);
}

}  // namespace
}  // namespace flashmoe
