#include "planner/rank_memory.hpp"

namespace flashmoe {

std::uint64_t rank_memory_bytes(const Problem& problem, std::uint64_t heap_bytes, std::uint64_t local_bytes) {
  const auto hidden = static_cast<std::uint64_t>(problem.hidden);
  const auto up_columns = static_cast<std::uint64_t>(problem.up_columns());
  const std::uint64_t element = dtype_bytes(problem.dtype);
  const std::uint64_t matrices = (up_columns + static_cast<std::uint64_t>(problem.intermediate)) * hidden * element;
  const std::uint64_t biases = (problem.up_bias ? up_columns : 0) + (problem.down_bias ? hidden : 0);
  const std::uint64_t token =
      2 * hidden * element + static_cast<std::uint64_t>(problem.top_k) * (sizeof(std::int32_t) + sizeof(float));
  return heap_bytes + local_bytes + static_cast<std::uint64_t>(problem.max_tokens) * token +
         static_cast<std::uint64_t>(problem.num_local_experts()) * (matrices + biases * sizeof(float));
}

}  // namespace flashmoe
