// Routings without a router: balanced, skewed, worst case, or from a file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>
#include <vector>

#include "flashmoe/problem.hpp"
#include "flashmoe/views.hpp"
#include "io/synthetic.hpp"

namespace flashmoe {

enum class RoutingKind : std::uint8_t {
  uniform,     ///< every set of top_k distinct experts is equally likely
  zipf,        ///< distinct experts, drawn one after another with odds rank^-exponent; the seed deals out the ranks
  all_to_one,  ///< experts 0..top_k-1 for every token
  histogram,   ///< distinct experts, drawn one after another with odds as recorded (histogram_file.hpp)
  file,        ///< routing_file.hpp
};

struct RoutingSpec {
  RoutingKind kind = RoutingKind::uniform;
  double zipf_exponent = 0.0;          ///< zipf: 0 (uniform) to 100
  std::filesystem::path histogram_file = {};  ///< histogram
  std::filesystem::path ids_file = {};      ///< file
  std::filesystem::path weights_file = {};  ///< file: empty when every weight is 1 / top_k

  bool operator==(const RoutingSpec&) const = default;
};

/// "uniform", "zipf:S", "all-to-one", "histogram:COUNTS.json", "IDS.npy" or "IDS.npy,WEIGHTS.npy". Throws InvalidArgument for anything else,
/// files that do not exist included.
RoutingSpec parse_routing_spec(std::string_view text);

/// One rank's routing.
struct RankRouting {
  std::vector<std::int32_t> topk_ids;  // [num_tokens][top_k]
  std::vector<float> topk_weights;     // [num_tokens][top_k]

  RoutingView view() const { return {topk_ids.data(), topk_weights.data()}; }
};

/// The batch's routing, one entry a rank, tokens counted over the ranks in order: how a batch is split changes nothing.
/// Generated weights are random, positive and sum to 1 over a token; with small_integers each is 1/2, 1 or 2.
/// Throws InvalidArgument when a file is unreadable or does not fit the problem and the token counts.
std::vector<RankRouting> generate_routing(const RoutingSpec& spec, const Problem& problem, std::uint64_t seed,
                                      const std::vector<std::int64_t>& tokens_per_rank,
                                      ValueSet values = ValueSet::uniform);

}  // namespace flashmoe
