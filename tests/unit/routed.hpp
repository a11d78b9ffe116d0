// What tests of the CPU router have in common.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "core/counter_rng.hpp"
#include "cpu/router.hpp"
#include "flashmoe/router.hpp"

namespace flashmoe::test {

inline constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Routed {
  std::vector<std::int32_t> ids;
  std::vector<float> weights;
  bool operator==(const Routed&) const = default;
};

inline Routed route(const RouterConfig& config, const std::vector<float>& logits, const std::vector<float>& bias = {}) {
  const auto num_tokens = static_cast<std::int64_t>(logits.size()) / config.num_experts;
  const auto num_routes = static_cast<std::size_t>(num_tokens * config.top_k);
  Routed routed{std::vector<std::int32_t>(num_routes, -7), std::vector<float>(num_routes, kNaN)};
  route_logits(config, num_tokens, logits.data(), bias.empty() ? nullptr : bias.data(), routed.ids.data(),
               routed.weights.data());
  return routed;
}

/// Roughly normal: the sum of twelve uniforms.
inline std::vector<float> random_logits(std::int64_t count, std::uint64_t seed, double scale = 1.0) {
  const CounterRng rng(seed, 0);
  std::vector<float> logits;
  for (std::int64_t i = 0; i < count; ++i) {
    double sum = -6.0;
    for (std::uint64_t j = 0; j < 12; ++j) sum += rng.uniform(static_cast<std::uint64_t>(i) * 12 + j);
    logits.push_back(static_cast<float>(sum * scale));
  }
  return logits;
}

}  // namespace flashmoe::test
