// One case of a benchmark, measured.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "bench_cases.hpp"
#include "comparison.hpp"
#include "expert_shelf.hpp"
#include "flashmoe/call_stats.hpp"
#include "flashmoe/layer.hpp"
#include "gpu_monitor.hpp"
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
  nlohmann::json conditions;      ///< of the timed calls and the rest before them; null: none
};

/// Warm-up, a rest, timed calls back to back, and a comparison of the last call's results with the reference on a
/// sample of `num_compared` tokens. `monitor` watches, unless null. Throws what any of it throws.
Measurement measure(BenchCase& bench_case, const BenchOptions& options, const Machine& machine, ExpertShelf& shelf,
                    std::int64_t num_compared, GpuMonitor* monitor);

/// Value below which `share` of the values lie (nearest rank); values not empty.
double quantile(std::vector<double> values, double share);

}  // namespace flashmoe::cli
