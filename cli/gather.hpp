// What the processes of a run tell each other after it.
#pragma once

#include <vector>

#include "batch.hpp"
#include "comparison.hpp"
#include "fabric/bootstrap.hpp"
#include "flashmoe/call_stats.hpp"

namespace flashmoe::cli {

/// Collective. `stats` and `deviations` [num_ranks] have this process's rank and get those of all others.
void gather(fabric::Bootstrap& meeting, std::vector<CallStats>& stats, std::vector<Deviation>& deviations);

/// Collective. On rank 0 `batch.y` gets the results of all ranks. Throws Error when the machine has no memory for them.
void gather_results(fabric::Bootstrap& meeting, Batch& batch);

}  // namespace flashmoe::cli
