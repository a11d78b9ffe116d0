#include "comparison.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/counter_rng.hpp"
#include "core/numeric.hpp"
#include "cpu/reference.hpp"

namespace flashmoe::cli {

namespace {

/// `count` of the tokens 0..num_tokens-1, every set equally likely, ascending.
std::vector<std::int64_t> sample(std::int64_t num_tokens, std::int64_t count, std::uint64_t seed) {
  constexpr std::uint64_t kSampleStream = std::uint64_t{0xff} << 56;  // apart from those of generated data
  const CounterRng rng(seed, kSampleStream);
  std::vector<std::int64_t> chosen;
  for (std::int64_t token = 0; token < num_tokens; ++token) {
    const std::int64_t wanted = count - static_cast<std::int64_t>(chosen.size());
    if (static_cast<std::int64_t>(rng.below(static_cast<std::uint64_t>(token),
                                            static_cast<std::uint64_t>(num_tokens - token))) < wanted) {
      chosen.push_back(token);
    }
  }
  return chosen;
}

/// Sums of one Deviation.
struct Sums {
  double error_squares = 0;
  double reference_squares = 0;
  Deviation deviation;

  void add(double value, double reference, double rounded_reference) {
    if (!std::isfinite(rounded_reference)) return;  // nothing to measure: the contract asks for no value here
    if (!std::isfinite(value)) {
      ++deviation.num_not_finite;
      return;
    }
    const double error = value - reference;
    error_squares += error * error;
    reference_squares += reference * reference;
    deviation.max_abs_error = std::max(deviation.max_abs_error, std::abs(error));
  }

  Deviation finish() const {
    Deviation result = deviation;
    if (error_squares > 0) {
      result.rel_l2 = reference_squares > 0 ? std::sqrt(error_squares / reference_squares)
                                            : std::numeric_limits<double>::infinity();
    }
    return result;
  }
};

double round_to(DType dtype, double value) {
  std::byte stored[sizeof(double)] = {};
  store_element(dtype, stored, 0, value);
  return load_element(dtype, stored, 0);
}

}  // namespace

double tolerance(DType dtype, std::int64_t num_elements) {
  switch (dtype) {
    // Three roundings of 8 bits give 2.86e-3 on average; over few elements the estimate itself scatters around that.
    case DType::bf16: return num_elements < (1 << 16) ? 1.2 * 3e-3 : 3e-3;
    case DType::fp16: return 5e-4;
    case DType::tf32: return 1e-3;
    case DType::fp32: return 1e-5;
    case DType::fp64: return 1e-13;
  }
  return 0.0;
}

Comparison compare(const Batch& batch, const ExpertSource& experts, std::int64_t num_tokens, std::uint64_t seed,
                   int num_threads) {
  const Problem& problem = batch.problem;
  const std::int64_t hidden = problem.hidden;
  const std::vector<std::int64_t> tokens = sample(batch.num_tokens(), std::min(num_tokens, batch.num_tokens()), seed);
  Comparison comparison;
  comparison.tolerance = tolerance(problem.dtype, static_cast<std::int64_t>(tokens.size()) * hidden);
  Sums all;
  std::vector<Sums> ranks(static_cast<std::size_t>(problem.num_ranks));
  if (!tokens.empty()) {
    const std::vector<double> reference =
        reference::layer(problem, experts, {batch.x.data(), batch.num_tokens()}, batch.routing.view(), tokens, num_threads);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      Sums& rank = ranks[static_cast<std::size_t>(batch.rank_of_token(tokens[i]))];
      ++rank.deviation.num_tokens;
      ++all.deviation.num_tokens;
      for (std::int64_t column = 0; column < hidden; ++column) {
        const double value = load_element(problem.dtype, batch.y.data(), tokens[i] * hidden + column);
        const double wanted = reference[i * static_cast<std::size_t>(hidden) + static_cast<std::size_t>(column)];
        const double rounded = round_to(problem.dtype, wanted);
        rank.add(value, wanted, rounded);
        all.add(value, wanted, rounded);
      }
    }
  }
  comparison.all = all.finish();
  for (const Sums& rank : ranks) comparison.ranks.push_back(rank.finish());
  comparison.passed = comparison.all.num_not_finite == 0 && comparison.all.rel_l2 <= comparison.tolerance;
  return comparison;
}

}  // namespace flashmoe::cli
