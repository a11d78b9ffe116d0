#include "io/synthetic_routing.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>
#include <span>
#include <system_error>
#include <utility>

#include "core/printable.hpp"
#include "flashmoe/error.hpp"
#include "io/histogram_file.hpp"
#include "io/routing_file.hpp"

namespace flashmoe {
namespace {

constexpr double kLargestExponent = 100.0;

// Random words of one token's stream: choices use the first ones, weights those from kWeightWords on.
constexpr std::uint64_t kWeightWords = std::uint64_t{1} << 32;

// Uniform in (0, 1), both ends excluded.
double open_uniform(const CounterRng& rng, std::uint64_t index) {
  return (static_cast<double>(rng.bits(index) >> 12) + 0.5) * 0x1p-52;
}

// `ids.size()` distinct experts, every set equally likely (Floyd's sampling), then in random order.
void choose_uniform(const CounterRng& rng, int num_experts, std::span<std::int32_t> ids) {
  const int count = static_cast<int>(ids.size());
  for (int i = 0; i < count; ++i) {
    const int last = num_experts - count + i;
    const auto draw = static_cast<std::int32_t>(rng.below(i, static_cast<std::uint64_t>(last) + 1));
    const bool taken = std::find(ids.begin(), ids.begin() + i, draw) != ids.begin() + i;
    ids[i] = taken ? last : draw;
  }
  for (int i = count - 1; i > 0; --i) {
    std::swap(ids[i], ids[rng.below(static_cast<std::uint64_t>(count + i), static_cast<std::uint64_t>(i) + 1)]);
  }
}

// Odds rank^-exponent, the ranks dealt out by the seed.
std::vector<double> zipf_log_odds(std::uint64_t seed, int num_experts, double exponent) {
  std::vector<int> expert_of_rank(num_experts);
  std::iota(expert_of_rank.begin(), expert_of_rank.end(), 0);
  const CounterRng rng = stream(seed, Stream::expert_order, 0);
  for (int i = num_experts - 1; i > 0; --i) {
    std::swap(expert_of_rank[i], expert_of_rank[rng.below(i, static_cast<std::uint64_t>(i) + 1)]);
  }
  std::vector<double> log_odds(num_experts);
  for (int rank = 0; rank < num_experts; ++rank) {
    log_odds[expert_of_rank[rank]] = -exponent * std::log(static_cast<double>(rank + 1));
  }
  return log_odds;
}

std::vector<double> log_odds_of(const RoutingSpec& spec, const Problem& problem, std::uint64_t seed) {
  if (spec.kind == RoutingKind::zipf) return zipf_log_odds(seed, problem.num_experts, spec.zipf_exponent);
  if (spec.kind != RoutingKind::histogram) return {};
  std::vector<double> odds = read_histogram(spec.histogram_file, problem.num_experts, problem.top_k);
  for (double& value : odds) value = std::log(value);  // none: -infinity, drawn last
  return odds;
}

// Experts drawn without replacement with given odds: the smallest of Exp(1) / odds come first (Efraimidis, Spirakis
// 2006), compared as logarithms, so that no odds underflow.
class OddsChooser {
 public:
  explicit OddsChooser(std::vector<double> log_odds)
      : log_odds_(std::move(log_odds)), keys_(log_odds_.size()), order_(log_odds_.size()) {}

  void choose(const CounterRng& rng, std::span<std::int32_t> ids) {
    for (std::size_t expert = 0; expert < keys_.size(); ++expert) {
      keys_[expert] = std::log(-std::log(open_uniform(rng, expert))) - log_odds_[expert];
    }
    std::iota(order_.begin(), order_.end(), 0);
    std::partial_sort(order_.begin(), order_.begin() + static_cast<std::ptrdiff_t>(ids.size()), order_.end(),
                      [this](int a, int b) { return keys_[a] != keys_[b] ? keys_[a] < keys_[b] : a < b; });
    std::copy_n(order_.begin(), ids.size(), ids.begin());
  }

 private:
  std::vector<double> log_odds_;  // [num_experts]
  std::vector<double> keys_;      // [num_experts]
  std::vector<int> order_;        // [num_experts]
};

void choose_weights(const CounterRng& rng, ValueSet values, std::span<float> weights) {
  if (values == ValueSet::small_integers) {
    for (std::size_t k = 0; k < weights.size(); ++k) {
      weights[k] = std::ldexp(1.0f, static_cast<int>(rng.below(kWeightWords + k, 3)) - 1);
    }
    return;
  }
  std::vector<double> draws(weights.size());
  for (std::size_t k = 0; k < draws.size(); ++k) draws[k] = open_uniform(rng, kWeightWords + k);
  const double sum = std::accumulate(draws.begin(), draws.end(), 0.0);
  for (std::size_t k = 0; k < draws.size(); ++k) weights[k] = static_cast<float>(draws[k] / sum);
}

RankRouting generate(const RoutingSpec& spec, const Problem& problem, std::uint64_t seed, std::int64_t num_tokens,
                 ValueSet values) {
  const auto top_k = static_cast<std::size_t>(problem.top_k);
  const std::size_t num_routes = static_cast<std::size_t>(num_tokens) * top_k;
  RankRouting batch{std::vector<std::int32_t>(num_routes), std::vector<float>(num_routes)};
  OddsChooser by_odds(log_odds_of(spec, problem, seed));
  for (std::size_t first = 0; first < num_routes; first += top_k) {
    const CounterRng rng = stream(seed, Stream::routing, first / top_k);
    const std::span ids(batch.topk_ids.data() + first, top_k);
    if (spec.kind == RoutingKind::uniform) {
      choose_uniform(rng, problem.num_experts, ids);
    } else if (spec.kind == RoutingKind::zipf || spec.kind == RoutingKind::histogram) {
      by_odds.choose(rng, ids);
    } else {
      std::iota(ids.begin(), ids.end(), 0);
    }
    choose_weights(rng, values, {batch.topk_weights.data() + first, top_k});
  }
  return batch;
}

double parse_exponent(std::string_view text) {
  double exponent = -1.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), exponent);
  if (error != std::errc{} || end != text.data() + text.size() || !(exponent >= 0.0 && exponent <= kLargestExponent)) {
    throw InvalidArgument(fmt::format("the exponent of routing (zipf:{}) must be a number in 0..{}, as in zipf:1.2",
                                      printable(text),
                                      kLargestExponent));
  }
  return exponent;
}

}  // namespace

RoutingSpec parse_routing_spec(std::string_view text) {
  constexpr std::string_view zipf = "zipf:";
  if (text == "uniform") return {};
  if (text == "all-to-one") return {.kind = RoutingKind::all_to_one};
  if (text.starts_with(zipf)) {
    return {.kind = RoutingKind::zipf, .zipf_exponent = parse_exponent(text.substr(zipf.size()))};
  }
  const auto is_file = [](const std::filesystem::path& path) {
    std::error_code ignored;
    return std::filesystem::is_regular_file(path, ignored);
  };
  const auto require_file = [&](std::string_view path) {
    if (is_file(path)) return;
    throw InvalidArgument(fmt::format("routing file {} does not exist: give the path of one that does", printable(path)));
  };
  constexpr std::string_view histogram = "histogram:";
  if (text.starts_with(histogram) && text.size() > histogram.size()) {
    require_file(text.substr(histogram.size()));
    return {.kind = RoutingKind::histogram, .histogram_file = text.substr(histogram.size())};
  }
  if (is_file(text)) return {.kind = RoutingKind::file, .ids_file = text};
  const std::size_t comma = text.find(',');
  if (comma != std::string_view::npos && comma > 0 && comma + 1 < text.size()) {
    require_file(text.substr(0, comma));
    require_file(text.substr(comma + 1));
    return {.kind = RoutingKind::file, .ids_file = text.substr(0, comma), .weights_file = text.substr(comma + 1)};
  }
  if (text.ends_with(".npy")) require_file(text);
  throw InvalidArgument(fmt::format("routing ({}) must be uniform, zipf:S, all-to-one, or an existing "
                                    "histogram:COUNTS.json or IDS.npy[,WEIGHTS.npy]", printable(text)));
}

std::vector<RankRouting> generate_routing(const RoutingSpec& spec, const Problem& problem, std::uint64_t seed,
                                      const std::vector<std::int64_t>& tokens_per_rank, ValueSet values) {
  const std::int64_t num_tokens = std::accumulate(tokens_per_rank.begin(), tokens_per_rank.end(), std::int64_t{0});
  const RankRouting batch = spec.kind == RoutingKind::file
                            ? read_routing(spec.ids_file, spec.weights_file, problem, num_tokens)
                            : generate(spec, problem, seed, num_tokens, values);
  std::vector<RankRouting> ranks;
  std::int64_t first = 0;
  for (const std::int64_t rank_tokens : tokens_per_rank) {
    const std::int64_t last = first + rank_tokens * problem.top_k;
    ranks.push_back({{batch.topk_ids.begin() + first, batch.topk_ids.begin() + last},
                     {batch.topk_weights.begin() + first, batch.topk_weights.begin() + last}});
    first = last;
  }
  return ranks;
}

}  // namespace flashmoe
