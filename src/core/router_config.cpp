// Names and rules of RouterConfig.
#include <fmt/format.h>

#include <array>
#include <cmath>
#include <utility>

#include "core/enumerators.hpp"
#include "core/printable.hpp"
#include "flashmoe/error.hpp"
#include "flashmoe/problem.hpp"
#include "flashmoe/router.hpp"

namespace flashmoe {
namespace {

constexpr std::array kRouterFunctions = {
    RouterFunction::softmax_topk, RouterFunction::topk_softmax,          RouterFunction::sigmoid_grouped,
    RouterFunction::sigmoid_topk, RouterFunction::softmax_group_limited, RouterFunction::sparsemixer};

template <class... Args>
void require(bool holds, fmt::format_string<Args...> message, Args&&... args) {
  if (!holds) throw InvalidArgument(fmt::format(message, std::forward<Args>(args)...));
}

// A group-limited model must not be routed by all its experts without a word.
void refuse_groups(const RouterConfig& config) {
  require(config.num_groups == 1 && config.topk_groups == 1,
          "num_groups ({}) and topk_groups ({}) must be 1 with {}, which has no groups: use sigmoid_grouped or "
          "softmax_group_limited, or leave them out",
          config.num_groups, config.topk_groups, to_string(config.function));
}

void validate_groups(const RouterConfig& config) {
  const bool by_two_best = config.function == RouterFunction::sigmoid_grouped;
  require(config.num_groups >= 1 && config.num_experts % config.num_groups == 0,
          "num_groups ({}) must be a divisor of num_experts ({}), 1 for no groups", config.num_groups,
          config.num_experts);
  require(config.topk_groups >= 1 && config.topk_groups <= config.num_groups,
          "topk_groups ({}) must be in 1..num_groups ({})", config.topk_groups, config.num_groups);
  const int group_size = config.num_experts / config.num_groups;
  require(!by_two_best || config.num_groups == 1 || group_size >= 2,
          "num_groups ({}) must leave at least 2 of the num_experts ({}) to a group, since sigmoid_grouped ranks groups "
          "by their two best",
          config.num_groups, config.num_experts);
  require(config.top_k <= config.topk_groups * group_size,
          "top_k ({}) must be at most the {} experts of the topk_groups ({}) groups kept; keep more groups",
          config.top_k, config.topk_groups * group_size, config.topk_groups);
}

}  // namespace

std::string_view to_string(RouterFunction function) {
  switch (function) {
    case RouterFunction::softmax_topk: return "softmax_topk";
    case RouterFunction::topk_softmax: return "topk_softmax";
    case RouterFunction::sigmoid_grouped: return "sigmoid_grouped";
    case RouterFunction::sigmoid_topk: return "sigmoid_topk";
    case RouterFunction::softmax_group_limited: return "softmax_group_limited";
    case RouterFunction::sparsemixer: return "sparsemixer";
  }
  return "?";
}

RouterFunction parse_router_function(std::string_view name) {
  for (const RouterFunction function : kRouterFunctions) {
    if (name == to_string(function)) return function;
  }
  throw InvalidArgument(fmt::format("router function ({}) must be one of {}", printable(name), names_of(kRouterFunctions)));
}

void validate(const RouterConfig& config) {
  require(is_enumerator(kRouterFunctions, config.function), "router function (number {}) must be one of {}",
          static_cast<int>(config.function), names_of(kRouterFunctions));
  require(config.num_experts >= 1 && config.num_experts <= Limits::num_experts,
          "num_experts ({}) of the router must be in 1..{}", config.num_experts, Limits::num_experts);
  require(config.top_k >= 1 && config.top_k <= Limits::top_k, "top_k ({}) of the router must be in 1..{}",
          config.top_k, Limits::top_k);
  require(config.top_k <= config.num_experts, "top_k ({}) must be at most num_experts ({})", config.top_k,
          config.num_experts);
  require(config.scaling_factor > 0.0 && config.scaling_factor <= 1e6,
          "scaling_factor ({}) must be above 0 and at most 1e6", config.scaling_factor);
  require(config.function == RouterFunction::sparsemixer || config.jitter_epsilon == RouterConfig{}.jitter_epsilon,
          "jitter_epsilon ({}) goes with router function sparsemixer, got {}: leave it out", config.jitter_epsilon,
          to_string(config.function));
  switch (config.function) {
    case RouterFunction::sigmoid_grouped:
    case RouterFunction::softmax_group_limited: validate_groups(config); break;
    case RouterFunction::sparsemixer:
      refuse_groups(config);
      require(config.top_k == 2, "top_k ({}) must be 2 with sparsemixer, which is defined for two choices",
              config.top_k);
      require(config.jitter_epsilon >= 0.0 && std::isfinite(config.jitter_epsilon),
              "jitter_epsilon ({}) must be a finite number, 0 or more", config.jitter_epsilon);
      break;
    case RouterFunction::softmax_topk:
    case RouterFunction::topk_softmax:
    case RouterFunction::sigmoid_topk: refuse_groups(config); break;
  }
}

}  // namespace flashmoe
