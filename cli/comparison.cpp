#include "comparison.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

#include "core/counter_rng.hpp"
#include "core/numeric.hpp"
#include "cpu/reference.hpp"

namespace flashmoe::cli {

namespace {

/// `count` of the tokens 0..num_tokens-1, every set equally likely, ascending.
std::vector<std::int64_t> draw(std::int64_t num_tokens, std::int64_t count, std::uint64_t seed) {
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

void add(Deviation& deviation, double value, double reference, double rounded_reference) {
  if (!std::isfinite(rounded_reference)) {
    // A sum that overflows may round to the largest number as well; one that is no number is none in any order.
    if (std::isnan(rounded_reference) && !std::isnan(value)) ++deviation.num_not_finite;
    ++deviation.num_unmeasured;
    return;
  }
  if (!std::isfinite(value)) {
    ++deviation.num_not_finite;
    return;
  }
  ++deviation.num_measured;
  const double error = value - reference;
  deviation.error_squares += error * error;
  deviation.reference_squares += reference * reference;
  deviation.max_abs_error = std::max(deviation.max_abs_error, std::abs(error));
}

void set_relative_error(Deviation& deviation) {
  if (deviation.error_squares == 0) return;
  deviation.rel_l2 = deviation.reference_squares > 0 ? std::sqrt(deviation.error_squares / deviation.reference_squares)
                                                     : std::numeric_limits<double>::infinity();
}

/// Experts that the token goes to, each once: a repeated one computes the same values.
std::int64_t num_experts_of(const Batch& batch, std::int64_t token) {
  std::set<std::int32_t> experts;
  for (int choice = 0; choice < batch.problem.top_k; ++choice) experts.insert(batch.expert(token, choice));
  experts.erase(-1);
  return static_cast<std::int64_t>(experts.size());
}

double round_to(DType dtype, double value) {
  std::byte stored[sizeof(double)] = {};
  store_element(dtype, stored, 0, value);
  return load_element(dtype, stored, 0);
}

}  // namespace

std::vector<Deviation> compare(const Batch& batch, const ExpertSource& experts, const Sample& sample) {
  const Problem& problem = batch.problem;
  const std::int64_t hidden = problem.hidden;
  std::vector<std::int64_t> tokens = draw(batch.num_tokens(), std::min(sample.num_tokens, batch.num_tokens()), sample.seed);
  std::erase_if(tokens, [&](std::int64_t token) {
    return std::find(sample.ranks.begin(), sample.ranks.end(), batch.rank_of_token(token)) == sample.ranks.end();
  });
  std::vector<Deviation> ranks(static_cast<std::size_t>(problem.num_ranks));
  if (tokens.empty()) return ranks;
  const std::vector<double> reference = reference::layer(problem, experts, {batch.x.data(), batch.num_tokens()},
                                                         batch.routing.view(), tokens, sample.num_threads);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    Deviation& rank = ranks[static_cast<std::size_t>(batch.rank_of_token(tokens[i]))];
    const std::int64_t measured_before = rank.num_measured;
    for (std::int64_t column = 0; column < hidden; ++column) {
      const double value = load_element(problem.dtype, batch.y.data(), tokens[i] * hidden + column);
      const double wanted = reference[i * static_cast<std::size_t>(hidden) + static_cast<std::size_t>(column)];
      add(rank, value, wanted, round_to(problem.dtype, wanted));
    }
    if (rank.num_measured > measured_before) ++rank.num_tokens;
    rank.num_intermediates += num_experts_of(batch, tokens[i]) * problem.intermediate;
  }
  for (Deviation& rank : ranks) set_relative_error(rank);
  return ranks;
}

Comparison judge(const Problem& problem, std::vector<Deviation> ranks) {
  Comparison comparison;
  comparison.ranks = std::move(ranks);
  Deviation& all = comparison.all;
  for (const Deviation& rank : comparison.ranks) {
    all.num_tokens += rank.num_tokens;
    all.error_squares += rank.error_squares;
    all.reference_squares += rank.reference_squares;
    all.max_abs_error = std::max(all.max_abs_error, rank.max_abs_error);
    all.num_not_finite += rank.num_not_finite;
    all.num_measured += rank.num_measured;
    all.num_intermediates += rank.num_intermediates;
    all.num_unmeasured += rank.num_unmeasured;
  }
  set_relative_error(all);
  comparison.tolerance = reference::error_bar(problem.dtype, all.num_measured, all.num_intermediates);
  comparison.passed = all.num_not_finite == 0 && all.rel_l2 <= comparison.tolerance;
  return comparison;
}

}  // namespace flashmoe::cli
