// The tensors of one call: the tokens of all ranks in one piece, rank after rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/expert_source.hpp"
#include "flashmoe/problem.hpp"
#include "flashmoe/views.hpp"
#include "io/checkpoint.hpp"
#include "io/synthetic_routing.hpp"
#include "job.hpp"

namespace flashmoe::cli {

struct Batch {
  Problem problem;
  std::vector<std::int64_t> first_token;  // [num_ranks + 1]
  std::vector<std::byte> x, y;            // [num_tokens][hidden]
  RankRouting routing;                    // [num_tokens][top_k]

  std::int64_t num_tokens() const { return first_token.back(); }
  std::int64_t num_tokens(int rank) const { return first_token[rank + 1] - first_token[rank]; }
  int rank_of_token(std::int64_t token) const;

  ConstRows x_of(int rank) const;
  Rows y_of(int rank);
  RoutingView routing_of(int rank) const;
  std::int32_t expert(std::int64_t token, int choice) const { return routing.topk_ids[token * problem.top_k + choice]; }

  /// Experts that at least one route goes to, ascending.
  std::vector<int> used_experts() const;
};

/// `checkpoint`: for its router, where the job has no other routing. y is filled with NaN, so that a row nobody writes
/// shows. Throws InvalidArgument as generate_routing().
Batch make_batch(Job& job, const std::optional<CheckpointLayer>& checkpoint);

}  // namespace flashmoe::cli
