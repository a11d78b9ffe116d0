// Work computed by several threads and handed over in order, so that sums do not depend on the number of threads.
#pragma once

#include <cstdint>
#include <functional>

namespace flashmoe {

/// Calls compute(unit, worker) for unit = 0..num_units-1 on `num_threads` threads (worker = 0..num_threads-1), then
/// commit(unit, worker) on the same thread, one unit at a time in ascending order. Units are started in ascending
/// order, and a worker starts its next unit after its commit, so buffers may be kept per worker.
/// **Memory ordering** commit(unit) happens before commit(unit + 1), and all of them before the return.
/// An exception stops the rest; that of the lowest unit is rethrown.
void compute_in_order(std::int64_t num_units, int num_threads, const std::function<void(std::int64_t, int)>& compute,
                      const std::function<void(std::int64_t, int)>& commit);

}  // namespace flashmoe
