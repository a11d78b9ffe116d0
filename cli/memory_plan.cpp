#include "memory_plan.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "flashmoe/error.hpp"
#include "io/synthetic_experts.hpp"
#include "machine.hpp"

namespace flashmoe::cli {

namespace {

/// Part of the free memory that experts may fill.
constexpr double kCacheShare = 0.7;

}  // namespace

MemoryPlan plan_memory(const Job& job, const LayerInfo& info, std::int64_t num_compared, int num_threads,
                       std::uint64_t available_bytes) {
  const Problem& problem = job.problem;
  const auto num_ranks = static_cast<std::uint64_t>(problem.num_ranks);
  const auto num_tokens = static_cast<std::uint64_t>(job.num_tokens());
  const std::uint64_t row_bytes = static_cast<std::uint64_t>(problem.hidden) * dtype_bytes(problem.dtype);
  const std::uint64_t route_bytes = static_cast<std::uint64_t>(problem.top_k) * (sizeof(std::int32_t) + sizeof(float));
  const std::uint64_t one_expert = expert_bytes(problem);
  const std::uint64_t experts_at_once =
      std::max(num_ranks * static_cast<std::uint64_t>(job.group.num_processors), static_cast<std::uint64_t>(num_threads));

  MemoryPlan plan;
  plan.expert_bytes = one_expert;
  // With backend cuda heaps and scratch memory lie on the GPUs.
  const std::uint64_t shared_bytes =
      job.group.backend == BackendKind::cpu ? num_ranks * (info.heap_bytes + info.local_bytes) : 0;
  plan.needed_bytes = shared_bytes + num_tokens * (2 * row_bytes + route_bytes) +
                      static_cast<std::uint64_t>(num_compared) * static_cast<std::uint64_t>(problem.hidden) * sizeof(double) +
                      std::min<std::uint64_t>(experts_at_once, static_cast<std::uint64_t>(problem.num_experts)) * one_expert;
  if (plan.needed_bytes > available_bytes) {
    throw InvalidArgument(fmt::format("this job needs {} bytes ({}) and {} are available: use fewer tokens, ranks or "
                                      "threads, smaller waves (--wave-tokens) or a smaller layer", plan.needed_bytes,
                                      readable_bytes(plan.needed_bytes), readable_bytes(available_bytes)));
  }
  const auto room = static_cast<std::uint64_t>(kCacheShare * static_cast<double>(available_bytes - plan.needed_bytes));
  plan.expert_cache_bytes = std::min<std::uint64_t>(room, one_expert * static_cast<std::uint64_t>(problem.num_experts));
  return plan;
}

}  // namespace flashmoe::cli
