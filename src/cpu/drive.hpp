// Stepping a rank's actors with real threads until they finish, a deadline passes or a rank gives up.
#pragma once

#include <exception>
#include <optional>

#include "actors/rank_trace.hpp"
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

struct DriveOptions {
  int num_threads = 1;           ///< 0: one an actor
  double deadline_seconds = 30;
  RankTrace* trace = nullptr;    ///< where every step is recorded; null: nowhere
};

/// Runs all actors of the program on its threads, the caller's among them.
DriveResult drive(RankProgram<Fabric>& program, const Call& call, Heap& heap, const DriveOptions& options);

/// After an abort: shares this rank's record, gives the others a moment to share theirs, and names the culprit.
Stall settle_stall(const Call& call, Heap& heap, const Stall& own, double grace_seconds);

}  // namespace flashmoe::cpu
