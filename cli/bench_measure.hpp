// One case of a benchmark, measured.
#pragma once

#include <memory>
#include <vector>

#include "bench_cases.hpp"
#include "comparison.hpp"
#include "core/expert_source.hpp"
#include "flashmoe/call_stats.hpp"
#include "flashmoe/layer.hpp"
#include "machine.hpp"
#include "planner/bound.hpp"

namespace flashmoe::cli {

struct Measurement {
  LayerInfo info;
  std::vector<double> call_us;   ///< [repeats], of the slowest rank
  std::vector<CallStats> stats;  ///< [num_ranks], of one call
  int num_gpus = 0;              ///< 0 on the CPU
  std::vector<RankWork> work;    ///< [num_ranks]
  Comparison comparison;
  bool weights_in_memory = true;  ///< else making them is part of the measured time
};

/// The experts of the latest case, kept for the next one with the same layer.
class ExpertShelf {
 public:
  std::shared_ptr<const ExpertSource> experts(const Job& job, std::size_t cache_bytes);

 private:
  Problem layer_;  // of experts_, without what a batch or a rank count adds
  std::uint64_t seed_ = 0;
  std::size_t cache_bytes_ = 0;
  std::shared_ptr<const ExpertSource> experts_;
};

/// Warm-up, timed calls back to back, and a comparison of the last call's results with the reference on a sample of
/// tokens (8 unless the job says otherwise). Throws what any of it throws.
Measurement measure(BenchCase& bench_case, const BenchOptions& options, const Machine& machine, ExpertShelf& shelf);

/// Value below which `share` of the values lie (nearest rank); values not empty.
double quantile(std::vector<double> values, double share);

}  // namespace flashmoe::cli
