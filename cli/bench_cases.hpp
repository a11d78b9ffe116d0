// The cases of a sweep: every combination of what the lists name.
#pragma once

#include <vector>

#include "api/timed_calls.hpp"
#include "bench_options.hpp"
#include "job.hpp"

namespace flashmoe::cli {

struct BenchCase {
  Job job;
  Replay replay = Replay::eager;
};

/// In the order layer, dtype, ranks, tokens, routing, replay: what is large to make changes least. Throws as make_job()
/// on the first case that cannot be, and InvalidArgument on flags that contradict each other.
std::vector<BenchCase> make_cases(const BenchOptions& options, int num_cores);

}  // namespace flashmoe::cli
