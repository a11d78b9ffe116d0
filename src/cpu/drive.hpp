// Stepping a rank's actors with real threads until they finish, a deadline passes or a rank gives up.
#pragma once

#include <exception>
#include <optional>

#include "actors/stall.hpp"
#include "cpu/heap.hpp"
#include "cpu/layer.hpp"
#include "cpu/rank_program.hpp"

namespace flashmoe::cpu {

struct DriveResult {
  bool finished = false;
  std::optional<Stall> stall;      ///< this rank's own record when it did not finish
  std::exception_ptr exception;    ///< what an engine threw, if that is why
  PhaseTimes phases;
};

/// Runs all actors of the program on `num_threads` threads (0: one an actor), the caller's among them.
DriveResult drive(RankProgram<Fabric>& program, const Call& call, Heap& heap, int num_threads,
                  double deadline_seconds);

/// After an abort: shares this rank's record, gives the others a moment to share theirs, and names the culprit.
Stall settle_stall(const Call& call, Heap& heap, const Stall& own, double grace_seconds);

}  // namespace flashmoe::cpu
