// Made-up tokens, experts and routings: where values come from, how they are distributed, what is kept in memory.
#include "io/synthetic.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/numeric.hpp"
#include "cpu/reference.hpp"
#include "flashmoe/error.hpp"
#include "io/synthetic_experts.hpp"
#include "io/synthetic_routing.hpp"

namespace flashmoe::test {
namespace {

constexpr DType kDTypes[] = {DType::bf16, DType::fp16, DType::tf32, DType::fp32, DType::fp64};

Problem small_problem() {
  return {.hidden = 64, .intermediate = 32, .num_experts = 6, .top_k = 2, .max_tokens = 64, .dtype = DType::bf16,
          .up_bias = true, .down_bias = true};
}

std::vector<double> widened(DType dtype, const void* data, std::int64_t count) {
  std::vector<double> values(static_cast<std::size_t>(count));
  load_doubles(dtype, data, count, values.data());
  return values;
}

std::vector<double> uniform_values(DType dtype, double scale, std::int64_t count) {
  std::vector<double> memory(static_cast<std::size_t>(count));
  fill_uniform(dtype, stream(5, Stream::token, 1), scale, count, memory.data());
  return widened(dtype, memory.data(), count);
}

struct Moments {
  double mean = 0.0;
  double variance = 0.0;
};
Moments moments(const std::vector<double>& values) {
  Moments result;
  const auto count = static_cast<double>(values.size());
  for (const double value : values) result.mean += value / count;
  for (const double value : values) result.variance += (value - result.mean) * (value - result.mean) / count;
  return result;
}

// ---- values

TEST(SyntheticValues, AreUniformSymmetricAndNeverZero) {
  for (const DType dtype : kDTypes) {
    const std::vector<double> values = uniform_values(dtype, 2.0, 100000);
    const Moments got = moments(values);
    EXPECT_NEAR(got.mean, 0.0, 0.02);
    EXPECT_NEAR(got.variance, 4.0 / 3.0, 0.02);
    for (const double value : values) {
      ASSERT_NE(value, 0.0);
      ASSERT_LE(std::abs(value), 2.0);
    }
  }
}

TEST(SyntheticValues, TypesShareThemUpToRounding) {
  const std::vector<double> exact = uniform_values(DType::fp64, 0.037, 1001);
  for (const DType dtype : kDTypes) {
    const std::vector<double> values = uniform_values(dtype, 0.037, 1001);
    const double ulp = dtype == DType::bf16 ? 0x1p-8 : dtype == DType::fp16 ? 0x1p-11 : 0x1p-22;
    for (std::size_t i = 0; i < exact.size(); ++i) {
      ASSERT_NEAR(values[i], exact[i], std::abs(exact[i]) * 1.01 * ulp + 0x1p-25) << to_string(dtype);
    }
  }
}

TEST(SyntheticValues, OfDoublesAreNoFloats) {
  int floats = 0;
  for (const double value : uniform_values(DType::fp64, 0.037, 1000)) floats += value == static_cast<double>(static_cast<float>(value));
  EXPECT_LT(floats, 10);
}

TEST(SyntheticValues, DoNotDependOnHowManyAreMade) {
  const std::vector<double> many = uniform_values(DType::fp32, 1.0, 103);
  for (const std::int64_t count : {0, 1, 2, 3, 4, 5, 102}) {
    const std::vector<double> few = uniform_values(DType::fp32, 1.0, count);
    EXPECT_TRUE(std::equal(few.begin(), few.end(), many.begin())) << count;
  }
}

TEST(SyntheticValues, SmallIntegersHaveTheirOdds) {
  constexpr int count = 80000;
  std::vector<float> values(count);
  fill_integers(DType::fp32, stream(6, Stream::up, 0), 2, count, values.data());
  for (int wanted = -2; wanted <= 2; ++wanted) {
    EXPECT_NEAR(std::count(values.begin(), values.end(), static_cast<float>(wanted)), count / 5, 600) << wanted;
  }
  fill_integers(DType::fp32, stream(6, Stream::up, 0), 1, count, values.data());
  EXPECT_NEAR(std::count(values.begin(), values.end(), 0.0f), count * 3 / 4, 700);
  EXPECT_NEAR(std::count(values.begin(), values.end(), 1.0f), count / 8, 500);
  EXPECT_NEAR(std::count(values.begin(), values.end(), -1.0f), count / 8, 500);
}

// ---- tokens

TEST(SyntheticTokens, DoNotDependOnTheSplitOverRanks) {
  for (const ValueSet set : {ValueSet::uniform, ValueSet::small_integers}) {
    const std::vector<std::byte> whole = generate_tokens(DType::bf16, 9, 0, 20, 24, set);
    std::vector<std::byte> joined;
    for (const auto& [first, count] : {std::pair{0, 7}, {7, 0}, {7, 12}, {19, 1}}) {
      const std::vector<std::byte> part = generate_tokens(DType::bf16, 9, first, count, 24, set);
      joined.insert(joined.end(), part.begin(), part.end());
    }
    EXPECT_EQ(joined, whole);
    EXPECT_NE(generate_tokens(DType::bf16, 10, 0, 20, 24, set), whole);
  }
}

TEST(SyntheticTokens, HaveVarianceOne) {
  const std::vector<std::byte> tokens = generate_tokens(DType::fp32, 9, 0, 100, 1000);
  const Moments got = moments(widened(DType::fp32, tokens.data(), 100000));
  EXPECT_NEAR(got.mean, 0.0, 0.02);
  EXPECT_NEAR(got.variance, 1.0, 0.02);
}

// ---- experts

std::vector<double> all_parameters(const Problem& problem, const ExpertParameters& expert) {
  std::vector<double> all = widened(problem.dtype, expert.up, std::int64_t{problem.up_columns()} * problem.hidden);
  const auto append = [&](const std::vector<double>& more) { all.insert(all.end(), more.begin(), more.end()); };
  append(widened(problem.dtype, expert.down, std::int64_t{problem.hidden} * problem.intermediate));
  append(widened(DType::fp32, expert.up_bias, problem.up_columns()));
  append(widened(DType::fp32, expert.down_bias, problem.hidden));
  return all;
}

TEST(GeneratedExperts, DependOnSeedAndGlobalExpertAlone) {
  Problem problem = small_problem();
  const GeneratedExperts experts(problem, 3, 1 << 20);
  problem.num_ranks = 3;
  problem.num_experts = 12;
  const GeneratedExperts spread(problem, 3, 0);
  const GeneratedExperts other(problem, 4, 0);
  std::set<std::vector<double>> different;
  for (const int index : {5, 0, 3}) {
    const std::vector<double> parameters = all_parameters(problem, *experts.expert(index));
    EXPECT_EQ(all_parameters(problem, *spread.expert(index)), parameters);
    EXPECT_NE(all_parameters(problem, *other.expert(index)), parameters);
    different.insert(parameters);
  }
  EXPECT_EQ(different.size(), 3u);
}

TEST(GeneratedExperts, ScaleMatricesByTheirFanIn) {
  Problem problem = small_problem();
  problem.hidden = 512;
  problem.intermediate = 128;
  const GeneratedExperts experts(problem, 3, 0);
  const auto expert = experts.expert(1);
  EXPECT_NEAR(moments(widened(problem.dtype, expert->up, 512 * 256)).variance * 512, 1.0, 0.02);
  EXPECT_NEAR(moments(widened(problem.dtype, expert->down, 512 * 128)).variance * 128, 1.0, 0.02);
  for (int i = 0; i < 256; ++i) EXPECT_LT(std::abs(expert->up_bias[i]), 0.1f);
  for (int i = 0; i < 512; ++i) EXPECT_LT(std::abs(expert->down_bias[i]), 0.1f);
}

TEST(GeneratedExperts, KeepActivationsOfOrderOne) {
  Problem problem = small_problem();
  problem.hidden = 512;
  problem.intermediate = 256;
  const GeneratedExperts experts(problem, 3, 0);
  const std::vector<std::byte> tokens = generate_tokens(problem.dtype, 3, 0, 16, problem.hidden);
  const std::vector<RankRouting> routing = generate_routing({}, problem, 3, {16});
  const double variance = moments(reference::layer(problem, experts, {tokens.data(), 16}, routing[0].view())).variance;
  EXPECT_GT(variance, 0.02);
  EXPECT_LT(variance, 2.0);
}

TEST(GeneratedExperts, GiveNoBiasThatTheProblemLacks) {
  Problem problem = small_problem();
  problem.up_bias = problem.down_bias = false;
  const GeneratedExperts experts(problem, 3, 0);
  EXPECT_EQ(experts.expert(0)->up_bias, nullptr);
  EXPECT_EQ(experts.expert(0)->down_bias, nullptr);
}

TEST(GeneratedExperts, OutsideTheLayerAreRefused) {
  const GeneratedExperts experts(small_problem(), 3, 0);
  EXPECT_THROW(experts.expert(-1), InvalidArgument);
  EXPECT_THROW(experts.expert(6), InvalidArgument);
}

TEST(GeneratedExperts, TooLargeForAnyMemoryIsAnErrorThatNamesTheBytes) {
  Problem problem = small_problem();
  problem.hidden = 1 << 24;
  problem.intermediate = 1 << 28;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizer's allocator ends the program instead of throwing bad_alloc";
#endif
  const GeneratedExperts experts(problem, 3, 0);
  try {
    experts.expert(0);
    FAIL() << "no exception";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(std::to_string(expert_bytes(problem))), std::string::npos) << error.what();
  }
}

TEST(GeneratedExperts, SmallIntegersMakeEverySumExactInFp32) {
  Problem problem = small_problem();
  problem.hidden = 256;
  problem.activation = Activation::relu;
  problem.gated = false;
  const GeneratedExperts experts(problem, 3, 0, ValueSet::small_integers);
  const std::vector<std::byte> tokens = generate_tokens(problem.dtype, 3, 0, 32, problem.hidden, ValueSet::small_integers);
  const std::vector<RankRouting> routing = generate_routing({}, problem, 3, {32}, ValueSet::small_integers);
  const std::vector<double> y = reference::layer(problem, experts, {tokens.data(), 32}, routing[0].view());
  double largest = 0.0;
  for (const double value : y) {
    ASSERT_EQ(value * 2.0, std::round(value * 2.0)) << "weights of 1/2 leave halves at most";
    largest = std::max(largest, std::abs(value));
  }
  EXPECT_GT(largest, 1.0);
  EXPECT_LT(largest, 0x1p22) << "halves below 2^22 are exact in fp32";
}

// ---- routings

class RoutingKinds : public testing::TestWithParam<RoutingSpec> {};

TEST_P(RoutingKinds, ChooseDistinctExpertsWithWeightsThatSumToOne) {
  for (const auto& [num_experts, top_k] : {std::pair{128, 8}, {8, 8}, {1, 1}, {4096, 32}}) {
    const Problem problem{.num_ranks = 1, .num_experts = num_experts, .top_k = top_k};
    const std::vector<RankRouting> routing = generate_routing(GetParam(), problem, 11, {50});
    for (std::size_t first = 0; first < routing[0].topk_ids.size(); first += static_cast<std::size_t>(top_k)) {
      const auto begin = routing[0].topk_ids.begin() + static_cast<std::ptrdiff_t>(first);
      const std::set<std::int32_t> ids(begin, begin + top_k);
      ASSERT_EQ(ids.size(), static_cast<std::size_t>(top_k));
      ASSERT_GE(*ids.begin(), 0);
      ASSERT_LT(*ids.rbegin(), num_experts);
      double sum = 0.0;
      for (int k = 0; k < top_k; ++k) {
        ASSERT_GT(routing[0].topk_weights[first + k], 0.0f);
        sum += routing[0].topk_weights[first + k];
      }
      ASSERT_NEAR(sum, 1.0, 1e-6);
    }
  }
}

TEST_P(RoutingKinds, DoNotDependOnTheSplitOverRanks) {
  const Problem problem{.num_ranks = 4, .num_experts = 16, .top_k = 3};
  const std::vector<RankRouting> whole = generate_routing(GetParam(), problem, 12, {40});
  const std::vector<RankRouting> split = generate_routing(GetParam(), problem, 12, {0, 25, 14, 1});
  ASSERT_EQ(split.size(), 4u);
  RankRouting joined;
  for (const RankRouting& rank : split) {
    joined.topk_ids.insert(joined.topk_ids.end(), rank.topk_ids.begin(), rank.topk_ids.end());
    joined.topk_weights.insert(joined.topk_weights.end(), rank.topk_weights.begin(), rank.topk_weights.end());
  }
  EXPECT_EQ(split[1].topk_ids.size(), 75u);
  EXPECT_EQ(joined.topk_ids, whole[0].topk_ids);
  EXPECT_EQ(joined.topk_weights, whole[0].topk_weights);
}

TEST_P(RoutingKinds, SmallIntegerWeightsArePowersOfTwo) {
  const Problem problem{.num_ranks = 1, .num_experts = 16, .top_k = 3};
  const std::vector<RankRouting> routing = generate_routing(GetParam(), problem, 13, {200}, ValueSet::small_integers);
  const std::vector<float>& all = routing[0].topk_weights;
  const std::set<float> weights(all.begin(), all.end());
  EXPECT_EQ(weights, (std::set<float>{0.5f, 1.0f, 2.0f}));
}

INSTANTIATE_TEST_SUITE_P(, RoutingKinds,
                         testing::Values(RoutingSpec{}, RoutingSpec{.kind = RoutingKind::zipf, .zipf_exponent = 1.2},
                                         RoutingSpec{.kind = RoutingKind::zipf, .zipf_exponent = 100.0},
                                         RoutingSpec{.kind = RoutingKind::all_to_one}));

std::vector<int> choices_per_expert(const RoutingSpec& spec, const Problem& problem, std::uint64_t seed, std::int64_t num_tokens) {
  std::vector<int> counts(static_cast<std::size_t>(problem.num_experts));
  const std::vector<RankRouting> routing = generate_routing(spec, problem, seed, {num_tokens});
  for (const std::int32_t id : routing[0].topk_ids) ++counts[static_cast<std::size_t>(id)];
  return counts;
}

TEST(Routing, UniformSpreadsEvenlyOverExpertsAndChoices) {
  const Problem problem{.num_ranks = 1, .num_experts = 10, .top_k = 3};
  for (const int count : choices_per_expert({}, problem, 14, 10000)) EXPECT_NEAR(count, 3000, 5 * std::sqrt(2100));
  const std::vector<std::int32_t> ids = generate_routing({}, problem, 14, {10000})[0].topk_ids;
  for (int choice = 0; choice < 3; ++choice) {
    std::vector<int> counts(10);
    for (std::size_t token = 0; token < 10000; ++token) ++counts[static_cast<std::size_t>(ids[token * 3 + choice])];
    for (const int count : counts) EXPECT_NEAR(count, 1000, 5 * std::sqrt(900)) << "choice " << choice;
  }
}

TEST(Routing, ZipfOfTop1FollowsItsLawWithRanksDealtOutByTheSeed) {
  const Problem problem{.num_ranks = 1, .num_experts = 16, .top_k = 1};
  const RoutingSpec spec{.kind = RoutingKind::zipf, .zipf_exponent = 1.0};
  std::set<std::ptrdiff_t> hottest;
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    std::vector<int> counts = choices_per_expert(spec, problem, seed, 20000);
    hottest.insert(std::max_element(counts.begin(), counts.end()) - counts.begin());
    std::sort(counts.rbegin(), counts.rend());
    double total = 0.0;
    for (int rank = 1; rank <= 16; ++rank) total += 1.0 / rank;
    for (int rank = 1; rank <= 4; ++rank) EXPECT_NEAR(counts[rank - 1] / 20000.0, 1.0 / rank / total, 0.02) << rank;
  }
  EXPECT_GT(hottest.size(), 4u);
}

TEST(Routing, ZipfOfExponentZeroIsUniform) {
  const Problem problem{.num_ranks = 1, .num_experts = 10, .top_k = 3};
  for (const int count : choices_per_expert({.kind = RoutingKind::zipf}, problem, 15, 10000)) {
    EXPECT_NEAR(count, 3000, 5 * std::sqrt(2100));
  }
}

TEST(Routing, AllToOneSendsEveryTokenToTheFirstExperts) {
  const Problem problem{.num_ranks = 1, .num_experts = 10, .top_k = 3};
  const std::vector<int> counts = choices_per_expert({.kind = RoutingKind::all_to_one}, problem, 16, 100);
  EXPECT_EQ(counts, (std::vector<int>{100, 100, 100, 0, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(generate_routing({.kind = RoutingKind::all_to_one}, problem, 16, {2})[0].topk_ids,
            (std::vector<std::int32_t>{0, 1, 2, 0, 1, 2}));
}

}  // namespace
}  // namespace flashmoe::test
