// The timelines of one rank's actors in host memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "actors/step.hpp"
#include "actors/trace.hpp"

namespace flashmoe {

struct ActorTrace {
  Actor actor = Actor::dispatcher;
  int index = 0;                     ///< among the rank's actors of this kind
  std::vector<TraceRecord> records;  ///< ascending in time
  std::uint64_t num_dropped = 0;     ///< spans after the last record that did not fit
};

/// Of one call; a call begins it anew.
struct RankTrace {
  std::size_t capacity = std::size_t{1} << 16;  ///< records of one actor
  std::vector<ActorTrace> actors;
};

}  // namespace flashmoe
