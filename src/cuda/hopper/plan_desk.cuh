// Between a dispatcher that plans and the consumers of its block, which have no task yet: whether these plan its chunk of the
// call's first wave (early_plan.cuh). They count it without asking. What they do not place, because their first task has come before
// all chunks were counted, the dispatcher does.
#pragma once

#include "actors/dispatcher.hpp"

namespace flashmoe::cuda_backend::hopper {

/// In shared memory. Accessed by atomics; fences of the block order what it stands for.
class PlanDesk {
 public:
  /// One thread of the block, before any other call.
  __device__ void init() { state_ = kAwaited; }

  /// The consumers have counted the chunk, and the calling thread has seen it. One thread. Memory ordering: release.
  __device__ void tell_counted() {
    __threadfence_block();
    atomicExch(&state_, kCounted);
  }
  /// They have not, and will not. One thread.
  __device__ void leave() { atomicExch(&state_, kLeft); }
  /// They have counted, but will not place. False where the dispatcher relies on it. One thread.
  __device__ bool leave_placing() { return atomicCAS(&state_, kCounted, kPlacingLeft) == kCounted; }

  /// What they have done. Memory ordering: acquire.
  __device__ PlanState state() {
    const unsigned state = atomicAdd(&state_, 0);
    __threadfence_block();
    return state == kAwaited ? PlanState::awaited : state == kLeft ? PlanState::left : PlanState::counted;
  }
  /// The dispatcher relies on them to place the counted chunk: all others are counted. False where they have left it. One thread.
  __device__ bool rely() { return atomicCAS(&state_, kCounted, kReliedOn) == kCounted; }

 private:
  enum : unsigned { kAwaited, kLeft, kCounted, kPlacingLeft, kReliedOn };

  unsigned state_;
};

}  // namespace flashmoe::cuda_backend::hopper
