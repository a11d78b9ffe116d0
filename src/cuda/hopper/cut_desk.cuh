// Between the scheduler and the consumers of its block, which have no task yet: whether these cut all m-blocks of the call
// (early_cut.cuh). Either may decide against it, until they begin; the scheduler not in every call.
#pragma once

#include "actors/scheduler.hpp"
#include "cuda/groups.cuh"

namespace flashmoe::cuda_backend::hopper {

/// In shared memory. Accessed by atomics; fences of the block order what it stands for.
class CutDesk {
 public:
  /// One thread of the block, before any other call.
  __device__ void init() { state_ = kAwaited; }

  /// The consumers cut now. False where the scheduler has refused. One thread.
  __device__ bool begin() { return atomicCAS(&state_, kAwaited, kCutting) == kAwaited; }
  /// They have cut so many, and the calling thread has seen it. One thread. Memory ordering: release.
  __device__ void tell_made(std::uint32_t count) {
    __threadfence_block();
    atomicExch(&state_, kMade + count);
  }
  /// They will not, or shall not. False where they have begun. One thread.
  __device__ bool refuse() { return atomicCAS(&state_, kAwaited, kLeft) == kAwaited; }

  __device__ bool refused() { return atomicAdd(&state_, 0) == kLeft; }
  /// Memory ordering: acquire.
  __device__ CutState state() {
    const unsigned state = atomicAdd(&state_, 0);
    __threadfence_block();
    return state >= kMade ? CutState::made : state == kLeft ? CutState::left : CutState::awaited;
  }
  /// M-blocks that have been cut.
  __device__ std::uint32_t count() { return atomicAdd(&state_, 0) - kMade; }

 private:
  enum : unsigned { kAwaited, kLeft, kCutting, kMade };

  unsigned state_;
};

/// A scheduler that has such a desk.
struct SchedulerWarp : WarpGroup {
  CutDesk* desk;
  bool may_refuse;  ///< not where blocks have begun with what will be cut, see Opening
  __device__ CutState cut_state() const { return broadcast(leader() ? desk->state() : CutState::awaited); }
  __device__ bool refuse_cut() const { return may_refuse && broadcast(leader() && desk->refuse()); }
  __device__ std::uint32_t num_cut() const { return broadcast(leader() ? desk->count() : 0u); }
};

}  // namespace flashmoe::cuda_backend::hopper
