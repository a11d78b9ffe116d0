// The experts of a sweep's layers, made and brought to the GPUs once for all cases of a layer.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "api/backend.hpp"
#include "core/expert_source.hpp"
#include "flashmoe/group.hpp"
#include "job.hpp"
#include "memory_plan.hpp"

namespace flashmoe::cli {

/// Keeps those of the latest layer.
class ExpertShelf {
 public:
  struct Experts {
    std::shared_ptr<const ExpertSource> source;
    std::vector<std::shared_ptr<const LoadedExperts>> loaded;  ///< [num_ranks], for layers of any group like the job's
  };

  /// Until the next call. With backend cuda, `num_threads` make them, where memory holds all. Throws what making or
  /// loading one throws.
  const Experts& experts(const Group& group, const Job& job, const MemoryPlan& memory, int num_threads);

 private:
  Problem layer_;  // of experts_.source, without what a batch or a rank count adds
  std::uint64_t seed_ = 0;
  std::size_t cache_bytes_ = 0;
  Experts experts_;
};

}  // namespace flashmoe::cli
