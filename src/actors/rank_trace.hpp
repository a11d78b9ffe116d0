// The timelines of one rank's actors, brought to host memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "actors/step.hpp"
#include "actors/trace.hpp"

namespace flashmoe {

/// What of a processor a timeline shows.
enum class ProcessorPart : std::uint8_t {
  whole,     ///< a task's span: all of it
  foreman,   ///< of a Hopper block: the warp that takes tasks and finds their rows
  loader,    ///< of a Hopper block; a task's span: its operands on their way to shared memory
  consumer,  ///< of a Hopper block, one of two warpgroups; a task's span: its product, or a reduction
};

constexpr std::string_view to_string(ProcessorPart part) {
  constexpr std::string_view names[] = {"processor", "foreman", "loader", "consumer"};
  return names[static_cast<int>(part)];
}

struct ActorTrace {
  Actor actor = Actor::dispatcher;
  int index = 0;  ///< among the rank's actors of this kind; of a part: its processor's
  ProcessorPart part = ProcessorPart::whole;
  int warpgroup = 0;                   ///< of a consumer
  int sm = -1;                         ///< the multiprocessor it ran on; -1: a CPU
  std::vector<TraceRecord> records{};  ///< ascending in time
  std::uint64_t num_dropped = 0;       ///< spans after the last record that did not fit
};

/// Of one call; a call begins it anew.
struct RankTrace {
  std::size_t capacity = std::size_t{1} << 12;  ///< records of one actor
  std::vector<ActorTrace> actors;
};

}  // namespace flashmoe
