// Consumers: two warpgroups that multiply, 64 rows of the tile each, and store what comes out.
#pragma once

#include <cstdint>

#include "cuda/hopper/block.cuh"
#include "cuda/hopper/epilogue.cuh"
#include "cuda/hopper/wgmma.cuh"
#include "cuda/reduce.cuh"

namespace flashmoe::cuda_backend::hopper {

template <DType dtype>
class Consumer {
 public:
  /// `warp`: of the consumer warps.
  __device__ Consumer(const Call& call, const Fabric& fabric, const WeightsView& weights, BlockMemory& block, int warp)
      : call_(call), fabric_(fabric), weights_(weights), block_(block), warp_(warp),
        lane_(static_cast<int>(threadIdx.x % 32)) {}

  /// Until the exit task.
  __device__ void run() {
    while (true) {
      block_.filled[slot_.index].wait(slot_.parity);
      const TaskSlot& slot = block_.slots[slot_.index];
      if (leads()) log().waited(SignalKind::task, call_.rank);
      if (slot.task.kind == TaskKind::exit) return;
      if (slot.task.kind == TaskKind::reduce) {
        if (warp_ < static_cast<int>(slot.num_rows)) {
          reduce_slot<dtype>(call_, fabric_, slot.task.wave_slot,
                             slot.task.tile * kReduceSlots + static_cast<std::uint32_t>(warp_));
          if (leads()) log().ran(slot.task);
        }
      } else {
        run_tile(slot);
      }
      block_.done[slot_.index].arrive();
      slot_.advance();
    }
  }

 private:
  static_assert(kReduceSlots == kConsumerWarps);

  __device__ int warpgroup() const { return warp_ / 4; }
  /// Its timeline is the warpgroup's.
  __device__ bool leads() const { return fresh_thread_index() % 128 == 0; }
  __device__ TraceLog& log() const { return block_.logs[kFirstConsumerRow + (warp_ >= 4 ? 1 : 0)]; }

  __device__ void run_tile(const TaskSlot& slot) {
    const int steps = num_steps(call_, slot.task);
    if (warpgroup() * (kTileRows / 2) >= static_cast<int>(slot.num_rows)) {
      skip(steps);
      return;
    }
    Accumulators d;
    multiply(slot, steps, d);
    if (leads()) log().ran(slot.task);
    if (warp_ * 16 >= static_cast<int>(slot.num_rows)) return;
    const Epilogue<dtype> epilogue(call_, fabric_, weights_, block_, warp_);
    if (slot.task.kind == TaskKind::up) {
      epilogue.store_up(slot, d);
    } else {
      epilogue.store_down(slot, d);
    }
    if (leads()) log().worked();
  }

  /// None of the warpgroup's rows exist.
  __device__ void skip(int steps) {
    for (int step = 0; step < steps; ++step) {
      block_.full[stage_.index].wait(stage_.parity);
      release(stage_.index);
      stage_.advance();
    }
  }

  __device__ void release(int stage) {
    if (lane_ == 0) block_.empty[stage].arrive();
  }

  /// One group of wgmma runs while the next stage is waited for; a stage is released when the group after it has begun.
  __device__ void multiply(const TaskSlot& slot, int steps, Accumulators& d) {
    const bool gathered = slot.task.kind == TaskKind::up;
    int before = 0;
    for (int step = 0; step < steps; ++step) {
      block_.full[stage_.index].wait(stage_.parity);
      if (gathered) fence_async_shared();
      const std::uint32_t stage = shared_address(block_.stages[stage_.index]);
      const std::uint64_t tokens = operand(stage + static_cast<std::uint32_t>(warpgroup() * kStageTokenBytes / 2));
      const std::uint64_t weights = operand(stage + kStageTokenBytes);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < kStageElements / 16; ++k) {
        const auto at = static_cast<std::uint64_t>(2 * k);
        wgmma<dtype>(d, tokens + at, weights + at, step > 0 || k > 0);
      }
      wgmma_commit();
      if (step > 0) {
        wgmma_wait<1>();
        release(before);
      }
      before = stage_.index;
      stage_.advance();
    }
    wgmma_wait<0>();
    release(before);
  }

  const Call& call_;
  const Fabric& fabric_;
  const WeightsView& weights_;
  BlockMemory& block_;
  int warp_;
  int lane_;
  RingPosition<kTaskSlots> slot_;
  RingPosition<kStages> stage_;
};

}  // namespace flashmoe::cuda_backend::hopper
