// Which timelines a block keeps, in this order: those of its processor, of each service warp's dispatcher (of the first
// warps: of the subscribers and the scheduler), of the combiners beside the dispatchers, and of warps that help combine.
#pragma once

#include "actors/local_layout.hpp"
#include "actors/rank_trace.hpp"

namespace flashmoe::cuda_backend {

struct TraceRows {
  int processor_rows;  ///< 1: the processor as a whole; 4: foreman, loader, two consumers
  int service_warps;
  int helpers;  ///< warps that combine once there are no tasks left

  constexpr int service(int warp) const { return processor_rows + warp; }
  constexpr int combiner(int warp) const { return service(service_warps) + warp; }
  constexpr int helper(int warp) const { return combiner(service_warps) + warp; }
  constexpr int total() const { return helper(helpers); }
};

inline constexpr int kForemanRow = 0;
inline constexpr int kLoaderRow = 1;
inline constexpr int kFirstConsumerRow = 2;

/// Whose timeline a row is, without its records.
ActorTrace describe_row(const TraceRows& rows, const Roster& roster, int block, int row);

}  // namespace flashmoe::cuda_backend
