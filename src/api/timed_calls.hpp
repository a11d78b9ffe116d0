// A call repeated on the same tensors and timed by the backend's own clock: what benchmarks measure.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "flashmoe/call_stats.hpp"

namespace flashmoe {

enum class Replay : std::uint8_t {
  eager,  ///< every call launched by the host
  graph,  ///< one captured CUDA graph, launched again and again; backend cuda only
};

constexpr std::string_view to_string(Replay replay) { return replay == Replay::eager ? "eager" : "graph"; }

/// How a call will be repeated.
struct Repetition {
  Replay replay = Replay::eager;
  int most_calls = 1;           ///< in one run
  double deadline_seconds = 0;  ///< of one call
  double hold_last_us = 0;      ///< by so much later than it could the last call of a run starts on this rank
};

struct TimedCalls {
  std::vector<double> us;  ///< [num_calls] from the end of the call before (the first: from the start) to its own end
  CallStats stats;         ///< of one call; bytes are averages where the backend counts over all of them
  int device = -1;         ///< GPU it ran on; -1: none
};

/// One rank's tensors, where the backend wants them, ready to be called on. Outlived by its layer and the call's
/// tensors.
class PreparedCalls {
 public:
  virtual ~PreparedCalls() = default;

  /// Collective: `num_calls` (1 to most_calls) calls back to back, without the host in between where the backend can.
  /// The results of the last one are in the call's y. Throws as Layer::forward().
  virtual TimedCalls run(int num_calls) = 0;
};

}  // namespace flashmoe
