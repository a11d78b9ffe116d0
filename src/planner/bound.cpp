#include "planner/bound.hpp"

#include <algorithm>
#include <bitset>
#include <cmath>

namespace flashmoe {

namespace {

double row_bytes(const Problem& problem) {
  return static_cast<double>(problem.hidden) * static_cast<double>(dtype_bytes(problem.dtype));
}

/// Chance that none of top_k distinct experts is among one rank's.
double chance_elsewhere(const Problem& problem) {
  double chance = 1.0;
  for (int choice = 0; choice < problem.top_k; ++choice) {
    const int free = problem.num_experts - choice;
    chance *= std::max(0.0, static_cast<double>(free - problem.num_local_experts()) / free);
  }
  return chance;
}

}  // namespace

double flops_per_route(const Problem& problem) {
  return 2.0 * problem.hidden * (static_cast<double>(problem.up_columns()) + problem.intermediate);
}

double expert_matrix_bytes(const Problem& problem) {
  return row_bytes(problem) * (static_cast<double>(problem.up_columns()) + problem.intermediate);
}

double memory_bytes(const Problem& problem, const RankWork& work) {
  const double intermediate_row =
      static_cast<double>(problem.intermediate) * static_cast<double>(dtype_bytes(problem.dtype));
  // Received tokens and returned results are written by one side and read by the other; y is written.
  const double rows = 2.0 * work.copies_in + 2.0 * work.routes_out + work.tokens;
  return work.touched_experts * expert_matrix_bytes(problem) + rows * row_bytes(problem) +
         2.0 * work.routes_in * intermediate_row;
}

std::vector<RankWork> count_work(const Problem& problem, std::span<const RoutingView> routing,
                                 std::span<const std::int64_t> num_tokens) {
  std::vector<RankWork> work(static_cast<std::size_t>(problem.num_ranks));
  std::vector<bool> touched(static_cast<std::size_t>(problem.num_experts));
  for (std::size_t source = 0; source < work.size(); ++source) {
    work[source].tokens = static_cast<double>(num_tokens[source]);
    const std::int32_t* id = routing[source].topk_ids;
    for (std::int64_t token = 0; token < num_tokens[source]; ++token) {
      std::bitset<Limits::num_ranks> ranks;
      for (int choice = 0; choice < problem.top_k; ++choice, ++id) {
        if (*id < 0) continue;
        const auto target = static_cast<std::size_t>(*id / problem.num_local_experts());
        const double remote = target == source ? 0 : 1;
        touched[static_cast<std::size_t>(*id)] = true;
        ++work[source].routes_out;
        ++work[target].routes_in;
        work[source].remote_routes_out += remote;
        work[target].remote_routes_in += remote;
        if (ranks.test(target)) continue;
        ranks.set(target);
        ++work[target].copies_in;
        work[source].remote_copies_out += remote;
        work[target].remote_copies_in += remote;
      }
    }
  }
  for (int expert = 0; expert < problem.num_experts; ++expert) {
    if (touched[static_cast<std::size_t>(expert)]) {
      ++work[static_cast<std::size_t>(expert / problem.num_local_experts())].touched_experts;
    }
  }
  return work;
}

RankWork expected_work(const Problem& problem, std::int64_t tokens_per_rank) {
  const double tokens = static_cast<double>(tokens_per_rank);
  const double routes = tokens * problem.top_k;
  const double elsewhere = static_cast<double>(problem.num_ranks - 1) / problem.num_ranks;
  const double copies = tokens * problem.num_ranks * (1.0 - chance_elsewhere(problem));
  const double untouched =
      std::pow(1.0 - static_cast<double>(problem.top_k) / problem.num_experts, tokens * problem.num_ranks);
  return {.tokens = tokens,
          .routes_out = routes,
          .routes_in = routes,
          .remote_routes_out = routes * elsewhere,
          .remote_routes_in = routes * elsewhere,
          .copies_in = copies,
          .remote_copies_out = copies * elsewhere,
          .remote_copies_in = copies * elsewhere,
          .touched_experts = problem.num_local_experts() * (1.0 - untouched)};
}

BoundRates BoundRates::h100(DType dtype) {
  constexpr double kBf16 = 790e6;
  constexpr double kSheetBf16 = 989.4;  // TFLOP/s, dense
  double sheet = kSheetBf16;
  switch (dtype) {
    case DType::bf16:
    case DType::fp16: break;
    case DType::tf32: sheet = 494.7; break;
    case DType::fp32:
    case DType::fp64: sheet = 66.9; break;
  }
  return {.flops = kBf16 * sheet / kSheetBf16, .memory_bytes = 3.0e6, .wire_bytes = 450e3};
}

BoundRates BoundRates::h200(DType dtype) {
  BoundRates rates = h100(dtype);
  rates.memory_bytes = 4.3e6;
  return rates;
}

BoundCard bound_card(std::string_view card, DType dtype) {
  if (card.find("H200") != std::string_view::npos) return {.name = "H200 SXM", .rates = BoundRates::h200(dtype)};
  return {.name = "H100 SXM", .rates = BoundRates::h100(dtype)};
}

double RankBound::us() const { return std::max({compute_us, hbm_us, wire_us}); }

std::string_view RankBound::limiter() const {
  if (compute_us >= hbm_us && compute_us >= wire_us) return "compute";
  return hbm_us >= wire_us ? "hbm" : "wire";
}

RankBound rank_bound(const Problem& problem, const RankWork& work, const BoundRates& rates) {
  const double wire_row_us = row_bytes(problem) / rates.wire_bytes;
  return {.compute_us = work.routes_in * flops_per_route(problem) / rates.flops,
          .weights_us = work.touched_experts * expert_matrix_bytes(problem) / rates.memory_bytes,
          .hbm_us = memory_bytes(problem, work) / rates.memory_bytes,
          .wire_us = (work.remote_copies_out + work.remote_copies_in) * wire_row_us,
          .wire_per_route_us = (work.remote_routes_out + work.remote_routes_in) * wire_row_us};
}

LayerBound layer_bound(const Problem& problem, std::span<const RankWork> work, const BoundRates& rates) {
  LayerBound layer;
  for (const RankWork& rank : work) {
    const RankBound bound = rank_bound(problem, rank, rates);
    if (bound.us() >= layer.rank.us()) layer.rank = bound;
    layer.memory_bytes = std::max(layer.memory_bytes, memory_bytes(problem, rank));
    layer.flops += rank.routes_in * flops_per_route(problem);
  }
  return layer;
}

}  // namespace flashmoe
