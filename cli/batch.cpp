#include "batch.hpp"

#include <algorithm>
#include <utility>

#include "io/synthetic.hpp"
#include "router_of.hpp"

namespace flashmoe::cli {

namespace {

std::int64_t row_bytes(const Problem& problem) {
  return problem.hidden * static_cast<std::int64_t>(dtype_bytes(problem.dtype));
}

}  // namespace

int Batch::rank_of_token(std::int64_t token) const {
  return static_cast<int>(std::upper_bound(first_token.begin(), first_token.end(), token) - first_token.begin()) - 1;
}

ConstRows Batch::x_of(int rank) const { return {x.data() + first_token[rank] * row_bytes(problem), num_tokens(rank)}; }
Rows Batch::y_of(int rank) { return {y.data() + first_token[rank] * row_bytes(problem), num_tokens(rank)}; }

RoutingView Batch::routing_of(int rank) const {
  const std::int64_t first_route = first_token[rank] * problem.top_k;
  return {routing.topk_ids.data() + first_route, routing.topk_weights.data() + first_route};
}

std::vector<int> Batch::used_experts() const {
  std::vector<bool> used(static_cast<std::size_t>(problem.num_experts));
  for (const std::int32_t expert : routing.topk_ids) {
    if (expert >= 0) used[static_cast<std::size_t>(expert)] = true;
  }
  std::vector<int> experts;
  for (int expert = 0; expert < problem.num_experts; ++expert) {
    if (used[static_cast<std::size_t>(expert)]) experts.push_back(expert);
  }
  return experts;
}

Batch make_batch(Job& job, const std::optional<CheckpointLayer>& checkpoint) {
  Batch batch;
  batch.problem = job.problem;
  batch.first_token = {0};
  for (const std::int64_t count : job.tokens_per_rank) batch.first_token.push_back(batch.first_token.back() + count);
  if (job.hidden_states) {
    batch.x = std::move(job.hidden_states->rows);
  } else {
    batch.x = generate_tokens(job.problem.dtype, job.seed, 0, batch.num_tokens(), job.problem.hidden);
  }
  batch.y.assign(batch.x.size(), std::byte{0xff});
  batch.routing = job.routing ? std::move(generate_routing(*job.routing, job.problem, job.seed, {batch.num_tokens()}).front())
                              : RouterOf(job, checkpoint).route({batch.x.data(), batch.num_tokens()}, job.group.backend);
  return batch;
}

}  // namespace flashmoe::cli
