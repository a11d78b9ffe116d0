// Loaders: two warps that fill the operand stages. Token rows are gathered by cp.async, 16 bytes a lane; weights and
// intermediate rows come as boxes that one thread asks for.
#pragma once

#include <cstdint>

#include "cuda/hopper/block.cuh"
#include "cuda/hopper/tensor_maps.hpp"

namespace flashmoe::cuda_backend::hopper {

class Loader {
 public:
  __device__ Loader(const Call& call, BlockMemory& block, const TensorMaps& maps, int warp)
      : call_(call), block_(block), maps_(maps), warp_(warp), lane_(static_cast<int>(threadIdx.x % 32)) {}

  /// Until the exit task.
  __device__ void run() {
    while (true) {
      block_.filled[slot_.index].wait(slot_.parity);
      const TaskSlot& slot = block_.slots[slot_.index];
      if (slot.task.kind == TaskKind::exit) return;
      if (asks()) log().waited(SignalKind::task, call_.rank);
      if (asks()) block_.begun[slot_.index].arrive();
      if (slot.task.kind == TaskKind::up) {
        load_up(slot);
      } else if (slot.task.kind == TaskKind::down) {
        load_down(slot);
      }
      if (asks()) log().ran(slot.task);
      block_.done[slot_.index].arrive();
      slot_.advance();
    }
  }

 private:
  static constexpr int kRowsApart = kLoaderWarps * 4;  // a warp copies 128 bytes of each of 4 rows at once
  static constexpr int kRowsEach = kTileRows / kRowsApart;

  __device__ bool asks() const { return warp_ == 0 && lane_ == 0; }

  __device__ TraceLog& log() const { return block_.logs[kLoaderRow]; }

  __device__ std::uint32_t stage_address() const { return shared_address(block_.stages[stage_.index]); }

  __device__ void load_up(const TaskSlot& slot) {
    const Geometry& g = call_.geometry();
    const int columns = g.tile.up_columns;
    const int rows_an_expert = call_.math.gated ? 2 * g.intermediate : g.intermediate;
    const int first = static_cast<int>(slot.local_expert) * rows_an_expert + static_cast<int>(slot.task.tile) * columns;
    const int second = call_.math.gated ? first + g.intermediate : first + kTileColumns / 2;

    // The second warpgroup of consumers skips its rows when there are none.
    if (slot.num_rows > kTileRows / 2) {
      gather<kRowsEach>(slot, first, second);
    } else {
      gather<kRowsEach / 2>(slot, first, second);
    }
  }

  /// Every step of k: `rows_each` rows of this lane, and the boxes of weights from rows `first` and `second` on.
  template <int rows_each>
  __device__ void gather(const TaskSlot& slot, int first, int second) {
    constexpr int kStepsAtOnce = 4;  // pointers move once for all of them
    const int hidden = call_.geometry().hidden;
    const int chunk = lane_ % 8;
    const int first_row = warp_ * 4 + lane_ / 8;
    const char* rows[rows_each];
#pragma unroll
    for (int i = 0; i < rows_each; ++i) {
      // Absent rows are computed as the first one and not stored: rows of a product do not touch each other.
      const int row = first_row + i * kRowsApart;
      rows[i] = reinterpret_cast<const char*>(slot.rows[row < static_cast<int>(slot.num_rows) ? row : 0]) + chunk * 16;
    }
    const auto target = static_cast<std::uint32_t>(first_row * kStageRowBytes + ((chunk ^ (first_row % 8)) << 4));
    const auto load_step = [&](int step, int offset, int bytes) {
      block_.empty[stage_.index].wait(stage_.parity ^ 1u);
      Barrier& full = block_.full[stage_.index];
      const std::uint32_t stage = stage_address();
      if (asks()) {
        full.arrive_expecting(kStageWeightBytes);
        load_box(stage + kStageTokenBytes, maps_.up, full, step * kStageElements, first);
        load_box(stage + kStageTokenBytes + kStageWeightBytes / 2, maps_.up, full, step * kStageElements, second);
      }
#pragma unroll
      for (int i = 0; i < rows_each; ++i) {
        copy_16(stage + target + static_cast<std::uint32_t>(i * kRowsApart * kStageRowBytes), rows[i] + offset, bytes);
      }
      full.arrive_when_copied();
      stage_.advance();
    };
    const int steps = num_steps(call_, slot.task);
    int step = 0;
    for (; step + kStepsAtOnce <= hidden / kStageElements; step += kStepsAtOnce) {
#pragma unroll
      for (int i = 0; i < kStepsAtOnce; ++i) load_step(step + i, i * kStageRowBytes, 16);
#pragma unroll
      for (int i = 0; i < rows_each; ++i) rows[i] += kStepsAtOnce * kStageRowBytes;
    }
    for (; step < steps; ++step) {
      load_step(step, 0, step * kStageElements + chunk * 8 < hidden ? 16 : 0);
#pragma unroll
      for (int i = 0; i < rows_each; ++i) rows[i] += kStageRowBytes;
    }
  }

  __device__ void load_down(const TaskSlot& slot) {
    const Geometry& g = call_.geometry();
    const int first = static_cast<int>(slot.local_expert) * g.hidden + static_cast<int>(slot.task.tile) * kTileColumns;
    const int steps = num_steps(call_, slot.task);
    // The intermediate was stored by other threads; the foreman has acquired it.
    if (asks()) fence_async_global();
    for (int step = 0; step < steps; ++step) {
      block_.empty[stage_.index].wait(stage_.parity ^ 1u);
      Barrier& full = block_.full[stage_.index];
      if (asks()) {
        const std::uint32_t stage = stage_address();
        full.arrive_expecting(kStageBytes);
        load_box(stage, maps_.intermediate, full, step * kStageElements, static_cast<int>(slot.task.index) * kTileRows);
        load_box(stage + kStageTokenBytes, maps_.down, full, step * kStageElements, first);
      }
      full.arrive();
      stage_.advance();
    }
  }

  const Call& call_;
  BlockMemory& block_;
  const TensorMaps& maps_;
  int warp_;
  int lane_;
  RingPosition<kTaskSlots> slot_;
  RingPosition<kStages> stage_;
};

}  // namespace flashmoe::cuda_backend::hopper
