// Routing formulas written another way than the library's: every expert scored, everything sorted, groups and bands by
// brute force. For finite logits.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "flashmoe/router.hpp"

namespace flashmoe::test {

/// One token's routes.
struct Routes {
  std::vector<int> ids;              // [top_k]
  std::vector<long double> weights;  // [top_k]
};

/// All experts from best to worst; equals keep the order of their ids.
inline std::vector<int> ranking(const std::vector<long double>& scores) {
  std::vector<int> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return scores[a] > scores[b]; });
  return order;
}

inline std::vector<long double> softmax(const std::vector<long double>& logits) {
  const long double best = *std::max_element(logits.begin(), logits.end());
  std::vector<long double> result;
  long double total = 0;
  for (const long double logit : logits) total += std::exp(logit - best);
  for (const long double logit : logits) result.push_back(std::exp(logit - best) / total);
  return result;
}

inline std::vector<long double> sigmoids(const std::vector<long double>& logits) {
  std::vector<long double> result;
  for (const long double logit : logits) result.push_back(std::exp(logit) / (1 + std::exp(logit)));
  return result;
}

/// Of all sets of `num_kept` groups the one with the largest sum of group scores (each the sum of its `num_best` best
/// members); among equals the one whose members come first. Tries every set.
inline std::uint32_t best_groups(const std::vector<long double>& scores, int num_groups, int num_kept, int num_best) {
  const auto size = static_cast<int>(scores.size()) / num_groups;
  std::vector<long double> group_score;
  for (int group = 0; group < num_groups; ++group) {
    std::vector<long double> members(scores.begin() + group * size, scores.begin() + (group + 1) * size);
    std::sort(members.rbegin(), members.rend());
    group_score.push_back(std::accumulate(members.begin(), members.begin() + num_best, 0.0L));
  }
  std::uint32_t best = 0;
  long double best_sum = -std::numeric_limits<long double>::infinity();
  for (std::uint32_t set = 0; set < (1u << num_groups); ++set) {
    if (std::popcount(set) != num_kept) continue;
    long double sum = 0;
    for (int group = 0; group < num_groups; ++group) sum += (set >> group & 1) ? group_score[group] : 0.0L;
    // Sets come in rising order of their bits, so the first of equal sums keeps the lowest groups. Equal but for the
    // order of addition: random scores never come that close.
    if (sum > best_sum + 1e-15L) best_sum = sum, best = set;
  }
  return best;
}

/// Phi-3.5's rule as arrays: mask the scores outside the band, softmax, take the best; hide it, and once more.
inline Routes sparsemixer_routes(const std::vector<long double>& scores, long double epsilon) {
  Routes routes;
  std::vector<long double> hidden = scores;
  for (int pass = 0; pass < 2; ++pass) {
    const int best = ranking(hidden).front();
    std::vector<long double> masked = hidden;
    for (std::size_t e = 0; e < scores.size(); ++e) {
      const long double factor = std::max(std::abs(scores[e]), hidden[best]);
      if ((hidden[best] - scores[e]) / factor > 2 * epsilon) masked[e] = -std::numeric_limits<long double>::infinity();
    }
    routes.ids.push_back(best);
    routes.weights.push_back(softmax(masked)[best]);
    hidden[best] = -std::numeric_limits<long double>::infinity();
  }
  return routes;
}

inline Routes oracle_routes(const RouterConfig& config, const std::vector<long double>& logits,
                            const std::vector<long double>& bias) {
  const int top_k = config.top_k;
  Routes routes;
  std::vector<long double> weights;
  std::vector<long double> choice = logits;
  int num_best = 0;
  switch (config.function) {
    case RouterFunction::softmax_topk: weights = softmax(logits); break;
    case RouterFunction::topk_softmax: break;
    case RouterFunction::sigmoid_topk: weights = sigmoids(logits); break;
    case RouterFunction::softmax_group_limited:
      weights = choice = softmax(logits);
      num_best = 1;
      break;
    case RouterFunction::sigmoid_grouped:
      weights = choice = sigmoids(logits);
      for (std::size_t e = 0; e < choice.size(); ++e) choice[e] += bias.empty() ? 0.0L : bias[e];
      num_best = 2;
      break;
    case RouterFunction::sparsemixer: routes = sparsemixer_routes(logits, config.jitter_epsilon); break;
  }
  if (num_best > 0 && config.num_groups > 1) {
    const std::uint32_t kept = best_groups(choice, config.num_groups, config.topk_groups, num_best);
    const auto size = static_cast<int>(choice.size()) / config.num_groups;
    for (std::size_t e = 0; e < choice.size(); ++e) {
      if (!(kept >> (static_cast<int>(e) / size) & 1)) choice[e] = -std::numeric_limits<long double>::infinity();
    }
  }
  if (routes.ids.empty()) {
    routes.ids = ranking(choice);
    routes.ids.resize(static_cast<std::size_t>(top_k));
    std::vector<long double> chosen_logits;
    for (const int id : routes.ids) chosen_logits.push_back(logits[id]);
    if (config.function == RouterFunction::topk_softmax) routes.weights = softmax(chosen_logits);
    for (const int id : routes.ids) {
      if (!weights.empty()) routes.weights.push_back(weights[id]);
    }
  }
  const long double sum = std::accumulate(routes.weights.begin(), routes.weights.end(), 0.0L);
  for (long double& weight : routes.weights) {
    weight *= config.scaling_factor / (config.renormalize ? sum + 1e-20L : 1.0L);
  }
  return routes;
}

}  // namespace flashmoe::test
