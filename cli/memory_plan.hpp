// Whether a job fits in memory, and how many experts may stay there.
#pragma once

#include <cstddef>
#include <cstdint>

#include "flashmoe/layer.hpp"
#include "job.hpp"

namespace flashmoe::cli {

struct MemoryPlan {
  std::uint64_t needed_bytes = 0;      ///< what the job cannot do without
  std::size_t expert_bytes = 0;        ///< of one expert
  std::size_t expert_cache_bytes = 0;  ///< for experts that stay, on top of what is needed

  /// Whether that many experts can stay, so that each is made once.
  bool holds(std::size_t num_experts) const { return num_experts * expert_bytes <= expert_cache_bytes; }
};

/// `num_compared` tokens will be compared by `num_threads` threads. Throws InvalidArgument with the bytes needed when
/// `available_bytes` are fewer.
MemoryPlan plan_memory(const Job& job, const LayerInfo& info, std::int64_t num_compared, int num_threads,
                       std::uint64_t available_bytes);

}  // namespace flashmoe::cli
