// Consumers: two warpgroups that multiply and store what comes out. Of a prefill tile each has 64 rows; of a decode
// tile 64 weight rows of each half.
#pragma once

#include <cstdint>

#include "cuda/hopper/block.cuh"
#include "cuda/hopper/decode_epilogue.cuh"
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
  __device__ __forceinline__ void run() {
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
        for (std::uint32_t i = 0; i < slot.task.num_tiles; ++i) run_tile(slot, static_cast<int>(slot.task.tile + i));
      }
      block_.done[slot_.index].arrive();
      slot_.advance();
    }
  }

 private:
  static_assert(kReduceSlots == kConsumerWarps);

  /// Asked for again with every tile, so that what follows from it does not stay in registers through the next product.
  __device__ int warp() const {
    int warp = warp_;
    asm volatile("" : "+r"(warp));
    return warp;
  }
  /// Its timeline is the warpgroup's.
  __device__ bool leads() const { return fresh_thread_index() % 128 == 0; }
  __device__ TraceLog& log() const { return block_.logs[kFirstConsumerRow + (warp_ >= 4 ? 1 : 0)]; }

  __device__ __forceinline__ void run_tile(const TaskSlot& slot, int tile) {
    if (slot.decode) {
      run_decode_tile(slot, tile);
    } else {
      run_prefill_tile(slot, tile);
    }
  }

  __device__ __forceinline__ void run_decode_tile(const TaskSlot& slot, int tile) {
    if (slot.num_rows > 32) {
      run_decode_tile<64>(slot, tile);
    } else if (slot.num_rows > 16) {
      run_decode_tile<32>(slot, tile);
    } else {
      run_decode_tile<16>(slot, tile);
    }
  }

  template <int tokens>
  __device__ __forceinline__ void run_decode_tile(const TaskSlot& slot, int tile) {
    TokenAccumulators<tokens> first;
    TokenAccumulators<tokens> second;
    multiply_tokens<tokens>(slot, first, second);
    if (leads()) log().ran(slot.task);
    const DecodeEpilogue<dtype, tokens> epilogue(call_, fabric_, weights_, block_, warp());
    if (slot.task.kind == TaskKind::up) {
      epilogue.store_up(slot, tile, first, second);
    } else {
      epilogue.store_down(slot, tile, first, second);
    }
    if (leads()) log().worked();
  }

  __device__ __forceinline__ void run_prefill_tile(const TaskSlot& slot, int tile) {
    const int steps = num_steps(call_, slot.task);
    if (warp() / 4 * (kTileRows / 2) >= static_cast<int>(slot.num_rows)) {
      skip(steps);
      return;
    }
    Accumulators d;
    multiply(slot, steps, d);
    if (leads()) log().ran(slot.task);
    const int own = warp();
    if (own * 16 >= static_cast<int>(slot.num_rows)) return;
    const Epilogue<dtype> epilogue(call_, fabric_, weights_, block_, own);
    if (slot.task.kind == TaskKind::up) {
      epilogue.store_up(slot, tile, d);
    } else {
      epilogue.store_down(slot, tile, d);
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

  __device__ __forceinline__ void multiply(const TaskSlot& slot, int steps, Accumulators& d) {
    const auto first_row = static_cast<std::uint32_t>(warp() / 4 * kStageTokenBytes / 2);
    clear(d);
    run_steps(steps, slot.task.kind == TaskKind::up, [&](std::uint32_t stage) {
      const std::uint64_t tokens = operand(stage + first_row);
      const std::uint64_t weights = operand(stage + kStageTokenBytes);
#pragma unroll
      for (int k = 0; k < kStageElements / 16; ++k) {
        const auto at = static_cast<std::uint64_t>(2 * k);
        wgmma<dtype>(d, tokens + at, weights + at);
      }
    });
  }

  /// 64 weight rows of each half of the tile by up to `tokens` tokens.
  template <int tokens>
  __device__ __forceinline__ void multiply_tokens(const TaskSlot& slot, TokenAccumulators<tokens>& first,
                                                  TokenAccumulators<tokens>& second) {
    const std::uint32_t first_weight = kStageTokenBytes + static_cast<std::uint32_t>(warp() / 4) * kGroupBytes;
    clear(first);
    clear(second);
    run_steps(num_steps(call_, slot.task), true, [&](std::uint32_t stage) {
      const std::uint64_t rows = operand(stage);
      const std::uint64_t low = operand(stage + first_weight);
      const std::uint64_t high = operand(stage + first_weight + kStageWeightBytes / 2);
#pragma unroll
      for (int k = 0; k < kStageElements / 16; ++k) {
        const auto at = static_cast<std::uint64_t>(2 * k);
        wgmma_tokens<dtype, tokens>(first, low + at, rows + at);
        wgmma_tokens<dtype, tokens>(second, high + at, rows + at);
      }
    });
  }
  static constexpr std::uint32_t kGroupBytes = 64 * kStageRowBytes;  ///< of 64 weight rows

  /// Not left to the first wgmma: ptxas would keep what an accumulator held before alive all around the loop over
  /// tasks.
  template <int count>
  __device__ static void clear(float (&d)[count]) {
#pragma unroll
    for (float& element : d) element = 0.0f;
  }

  /// issue(stage): the wgmma of one stage. One group of them runs while the next stage is waited for; a stage is
  /// released when the group after it has begun. `gathered`: rows came by cp.async.
  template <class Issue>
  __device__ __forceinline__ void run_steps(int steps, bool gathered, const Issue& issue) {
    int before = 0;
    for (int step = 0; step < steps; ++step) {
      block_.full[stage_.index].wait(stage_.parity);
      if (gathered) fence_async_shared();
      wgmma_fence();
      issue(shared_address(block_.stages[stage_.index]));
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
