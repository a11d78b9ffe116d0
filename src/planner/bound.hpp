// The least time a call can take on a machine of given rates, whatever the implementation: what it must compute, read
// and send, from an actual routing. Pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "flashmoe/problem.hpp"
#include "flashmoe/views.hpp"

namespace flashmoe {

/// What one rank has to do in a call. Counts, or expected counts of a random routing.
/// A copy is a (token, rank) pair: the token has at least one expert on that rank. Masked routes count nowhere.
struct RankWork {
  double tokens = 0;             ///< its own
  double routes_out = 0;         ///< of its tokens
  double routes_in = 0;          ///< to its experts
  double remote_routes_out = 0;  ///< of its tokens, to experts of other ranks
  double remote_routes_in = 0;   ///< to its experts, from tokens of other ranks
  double copies_in = 0;          ///< tokens that have an expert here, its own included
  double remote_copies_out = 0;  ///< of its tokens, on other ranks
  double remote_copies_in = 0;   ///< tokens of other ranks that have an expert here
  double touched_experts = 0;    ///< of its experts, those that get at least one route
};

/// Work of every rank. routing[rank]: [num_tokens[rank]][top_k], every id -1 or in 0..num_experts-1.
std::vector<RankWork> count_work(const Problem& problem, std::span<const RoutingView> routing,
                                 std::span<const std::int64_t> num_tokens);

/// Expected work of each rank when every rank has `tokens_per_rank` tokens and every set of top_k experts is equally
/// likely. An expert stays untouched with probability (1 - top_k / num_experts)^(tokens of all ranks); a token has a
/// copy on a rank unless all its choices are among the other ranks' experts.
RankWork expected_work(const Problem& problem, std::int64_t tokens_per_rank);

/// Rates of one GPU, per microsecond.
struct BoundRates {
  double flops = 0;
  double memory_bytes = 0;
  double wire_bytes = 0;  ///< in each direction

  /// H100 SXM: bf16 GEMM as cuBLAS reaches it (790 TFLOP/s; the other types scaled by the data sheet's ratios), HBM
  /// reads at 3.0 TB/s, NVLink at its nominal 450 GB/s.
  static BoundRates h100(DType dtype);

  /// H200 SXM: an H100 whose HBM is read at 4.3 TB/s, the same share (0.9) of what the data sheet says.
  static BoundRates h200(DType dtype);
};

/// The card whose rates a bound is computed from.
struct BoundCard {
  std::string_view name;
  BoundRates rates;
};

/// The one that `card`, a GPU by its full name, is; an H100 for cards whose rates are not known, processors among them.
BoundCard bound_card(std::string_view card, DType dtype);

struct RankBound {
  double compute_us = 0;
  double weights_us = 0;         ///< touched experts read once
  double hbm_us = 0;             ///< weights, and every row and the intermediate written and read once where they lie
  double wire_us = 0;            ///< a token once per rank that needs it, one summed result back
  double wire_per_route_us = 0;  ///< one row for every route, out and back

  double us() const;                 ///< the largest of compute, hbm and wire
  std::string_view limiter() const;  ///< which that is: "compute", "hbm" or "wire"
};

/// Ingress and egress of a rank are equal: what enters as a token leaves as its result, and the other way round; so one
/// wire time is both. Reading x is left out: rows bound for elsewhere cost the wire more.
RankBound rank_bound(const Problem& problem, const RankWork& work, const BoundRates& rates);

/// Floating point operations of one route: two or three matrix products with one row.
double flops_per_route(const Problem& problem);

/// Bytes of one expert's matrices.
double expert_matrix_bytes(const Problem& problem);

/// Bytes that cross a rank's memory at least: what hbm_us is the time of.
double memory_bytes(const Problem& problem, const RankWork& work);

/// Bound of a call: that of the rank it is highest for, since a call takes as long as its slowest rank.
struct LayerBound {
  RankBound rank;           ///< of that rank
  double memory_bytes = 0;  ///< largest over the ranks
  double flops = 0;         ///< of all ranks
};
LayerBound layer_bound(const Problem& problem, std::span<const RankWork> work, const BoundRates& rates);

}  // namespace flashmoe
