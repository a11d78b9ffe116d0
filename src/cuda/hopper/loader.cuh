// Loaders: two warps that fill the operand stages. Token rows, and a decode tile's intermediate rows, are gathered by
// cp.async, 16 bytes a lane (tagged rows by plain loads, as their tags are looked at); weights and a prefill tile's intermediate
// come as boxes that one thread asks for.
#pragma once

#include <cstdint>

#include "cuda/hopper/block.cuh"
#include "cuda/hopper/tagged_rows.cuh"
#include "cuda/hopper/tensor_maps.hpp"

namespace flashmoe::cuda_backend::hopper {

/// `kPairs`: see moe_kernel().
template <bool kPairs>
class Loader {
 public:
  __device__ Loader(const Call& call, BlockMemory& block, const TensorMaps& maps, int warp)
      : call_(call), block_(block), maps_(maps), pair_(block.mail), warp_(warp), lane_(static_cast<int>(threadIdx.x % 32)) {}

  /// Until the exit task.
  __device__ __forceinline__ void run() {
    if (asks()) {  // while there is nothing else to do
      prefetch_map(maps_.up);
      prefetch_map(maps_.deep_up);
      prefetch_map(maps_.half_up);
      prefetch_map(maps_.down);
      prefetch_map(maps_.narrow_down);
      prefetch_map(maps_.intermediate);
    }
    if (lends_stages(call_)) {
      block_.listed.wait(0);
      if constexpr (kPairs) fence_cluster();  // the pair's other block copies into these stages, too
    }
    while (true) {
      block_.filled[slot_.index()].wait(slot_.parity());
      const TaskSlot& slot = block_.slots[slot_.index()];
      if (slot.task.kind == TaskKind::exit) return;
      if (asks()) log().waited(SignalKind::task, call_.rank);
      if (slot.task.kind == TaskKind::reduce) {
        if (asks()) tell_ending();
        block_.stored[slot_.index()].wait(slot_.parity());  // no phase goes by unseen
      } else {
        if (kPairs && slot.aligns) skip_to_first_stage();
        for_each_product(slot, [&](int tile) { load_product(slot, tile, is_wide(slot, tile)); });
      }
      if (asks()) log().ran(slot.task);
      block_.done[slot_.index()].arrive();
      slot_.advance();
    }
  }

 private:
  static constexpr int kRowsApart = kLoaderWarps * 4;  // a warp copies 128 bytes of each of 4 rows at once

  __device__ bool asks() const { return warp_ == 0 && lane_ == 0; }

  __device__ TraceLog& log() const { return block_.logs[kLoaderRow]; }

  __device__ std::uint32_t stage_address() const { return shared_address(block_.stages[stage_.index()]); }

  /// Pairs have no half tiles: see halved_ups_are_better().
  __device__ static bool is_half(const Task& task) { return !kPairs && task.half != 0; }
  __device__ static bool is_shared(const TaskSlot& slot) { return kPairs && slot.shared; }

  /// Shared weights go to the same place of both blocks, whose tasks before may have had different numbers of stages.
  __device__ void skip_to_first_stage() {
    while (stage_.index() != 0) {
      block_.empty[stage_.index()].wait(stage_.parity() ^ 1u);
      if (asks()) block_.full[stage_.index()].arrive();
      block_.full[stage_.index()].arrive();
      stage_.advance();
    }
  }

  __device__ void load_product(const TaskSlot& slot, int tile, bool wide) {
    num_asked_ = 0;
    const Task& task = slot.task;
    const int tiles_left = static_cast<int>(task.tile) + task.num_tiles - tile;
    const int stages_left = is_half(task)   ? num_half_stages(call_, task)
                            : is_deep(slot) ? tiles_left * num_deep_stages(call_, task)
                                            : (tiles_left + kTilesAtOnce - 1) / kTilesAtOnce * num_steps(call_, task);
    ending_stage_ = stages_left - kStagesAhead;
    if (asks() && (ending_stage_ == 0 || (ending_stage_ < 0 && tile == static_cast<int>(task.tile)))) tell_ending();
    if (slot.task.kind == TaskKind::up) {
      gather(slot, up_operands(slot, tile, wide));
    } else if (!kPairs && slot.tagged) {
      gather_tagged(slot, down_operands(slot, tile, wide));
    } else if (slot.decode) {
      gather(slot, down_operands(slot, tile, wide));
    } else {
      load_down(slot, tile, wide);
    }
  }

  /// What a task with gathered rows multiplies.
  struct Operands {
    const CUtensorMap* map;  ///< of the weights
    int first, second;       ///< rows of its boxes; second < 0: there is one box, or one a step
    int tiles, rows_apart;   ///< deep: so many take turns, the next one's boxes so many rows behind
    bool by_eights;          ///< a deep up tile's boxes: all of these count eight rows
    bool shared;             ///< each block of the pair loads one of them
    int steps;               ///< of k in a stage: of several, each has a box
    std::uint32_t bytes;     ///< of the boxes
    std::uint64_t policy;
    int k;
    const char* rows;  ///< rows that follow each other; null: slot.rows says where each is
    std::uint32_t row_bytes;
  };

  __device__ Operands up_operands(const TaskSlot& slot, int tile, bool wide) const {
    const Geometry& g = call_.geometry();
    const int rows_an_expert = (call_.math.gated ? 2 : 1) * g.intermediate;
    const int first = static_cast<int>(slot.local_expert) * rows_an_expert + tile * g.tile.up_columns;
    if (is_half(slot.task)) {
      const int eight = (first + first_up_column(g, slot.task, 0)) / 8;
      return {.map = &maps_.half_up, .first = eight, .second = -1,
              .tiles = 1, .rows_apart = 0, .by_eights = true, .shared = false,
              .steps = kHalfSteps, .bytes = kStageWeightBytes, .policy = policy_of(slot), .k = g.hidden,
              .rows = nullptr, .row_bytes = 0};
    }
    if (is_deep(slot)) {
      return {.map = &maps_.deep_up, .first = first / 8, .second = -1,
              .tiles = wide ? kTilesAtOnce : 1, .rows_apart = g.tile.up_columns / 8, .by_eights = true, .shared = false,
              .steps = kDeepSteps, .bytes = kStageWeightBytes, .policy = policy_of(slot), .k = g.hidden,
              .rows = nullptr, .row_bytes = 0};
    }
    const int second = call_.math.gated ? first + g.intermediate : first + kTileColumns / 2;
    return {.map = &maps_.up, .first = first, .second = second,
            .tiles = 1, .rows_apart = 0, .by_eights = false, .shared = is_shared(slot),
            .steps = 1, .bytes = kStageWeightBytes, .policy = policy_of(slot), .k = g.hidden,
            .rows = nullptr, .row_bytes = 0};
  }

  __device__ Operands down_operands(const TaskSlot& slot, int tile, bool wide) const {
    const Geometry& g = call_.geometry();
    const int first = static_cast<int>(slot.local_expert) * g.hidden + tile * kDownColumns;
    const bool deep = is_deep(slot);
    const bool shared = is_shared(slot);
    return {.map = wide && !shared && !deep ? &maps_.down : &maps_.narrow_down,
            .first = first, .second = wide && shared && !deep ? first + kDownColumns : -1,
            .tiles = is_quad(slot, tile) ? kQuadTiles : deep && wide ? kTilesAtOnce : 1, .rows_apart = kDownColumns,
            .by_eights = false, .shared = shared,
            .steps = deep ? kDeepSteps : 1,
            .bytes = static_cast<std::uint32_t>(wide || deep ? kStageWeightBytes : kStageWeightBytes / 2),
            .policy = policy_of(slot), .k = g.intermediate,
            .rows = call_.intermediate_row(slot.task.index, 0), .row_bytes = static_cast<std::uint32_t>(g.intermediate) * 2};
  }

  /// Weights that none else is likely to want: what they would push out of L2 is worth more.
  __device__ static std::uint64_t policy_of(const TaskSlot& slot) {
    return slot.streams ? stream_policy() : keep_policy();
  }

  /// The row of the box that block `rank` of the pair loads for both; below 0: none.
  __device__ static int shared_row(const Operands& operands, int rank) { return rank == 0 ? operands.first : operands.second; }

  /// Asks for the boxes of one stage, the `number`-th of the product, of kSteps steps of k; shared, only says that the stage takes
  /// the other block's.
  template <int kSteps>
  __device__ void load_weights(const Operands& operands, int index, int number) {
    if (operands.shared) {
      if (shared_row(operands, pair_.other()) >= 0) block_.ready[index].arrive_at(pair_.other());
      return;
    }
    Barrier& full = block_.full[index];
    const std::uint32_t weights = shared_address(block_.stages[index]) + kStageTokenBytes;
    static_assert(kTilesAtOnce == 2 && kQuadTiles == 4);  // tiles / 2 is what they are two to the power of
    const int k = (number >> operands.tiles / 2) * kSteps * kStageElements;
    const int apart = (number & (operands.tiles - 1)) * operands.rows_apart;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      load_box_of(operands, weights + static_cast<std::uint32_t>(step * kStageWeightBytes / kSteps), full,
                  k + step * kStageElements, operands.first + apart);
    }
    if (kSteps == 1 && operands.second >= 0) load_box_of(operands, weights + kStageWeightBytes / 2, full, k, operands.second);
  }
  __device__ static void load_box_of(const Operands& operands, std::uint32_t target, Barrier& full, int k, int place) {
    load_weight_box(target, *operands.map, full, k, operands.by_eights ? 0 : place, operands.by_eights ? place : 0,
                    operands.policy);
  }

  /// This block's box of a stage with shared weights, once the other block's stage takes it. What else the stage wants is
  /// asked for before. No phase of `ready` goes by unseen: the other block arrives again only when its stage has had this box.
  __device__ void load_shared_weights(const Operands& operands, int index, int number) {
    const int row = shared_row(operands, pair_.rank());
    if (row < 0) return;
    block_.ready[index].wait(ready_parities_ >> index & 1u);
    ready_parities_ ^= 1u << index;
    const std::uint32_t target = shared_address(block_.stages[index]) + kStageTokenBytes +
                                 static_cast<std::uint32_t>(pair_.rank() * kStageWeightBytes / 2);
    load_weight_box_for_both(target, *operands.map, block_.full[index], number * kStageElements, row, operands.policy);
  }

  /// As few rows as a decode tile multiplies. What a prefill tile multiplies beyond is not stored.
  __device__ void gather(const TaskSlot& slot, const Operands& operands) {
    if (!slot.decode && slot.num_rows > kDecodeRows) {
      gather_rows<kTileRows / kRowsApart, 1>(slot, operands);
    } else {
      with_decode_rows(slot.num_rows, [&](auto rows) __attribute__((always_inline)) {
        if constexpr (!kPairs && rows.value <= kHalfRows) {
          if (operands.steps == kHalfSteps) return gather_rows<rows.value / kRowsApart, kHalfSteps>(slot, operands);
        }
        if constexpr (rows.value <= kDeepColumns) {
          constexpr int gathered = rows.value < kDeepRows ? rows.value : kDeepRows;
          if (operands.steps == kDeepSteps) return gather_rows<gathered / kRowsApart, kDeepSteps>(slot, operands);
        }
        gather_rows<rows.value / kRowsApart, 1>(slot, operands);
      });
    }
  }

  /// Every step of k, `kSteps` of them a stage: `rows_each` rows of this lane, and the boxes of weights. Tiles that take turns
  /// each have the rows.
  template <int rows_each, int kSteps>
  __device__ __forceinline__ void gather_rows(const TaskSlot& slot, const Operands& operands) {
    constexpr int kStepsAtOnce = 4;  // pointers move once for all of them
    const int chunk = lane_ % 8;
    const int first_row = warp_ * 4 + lane_ / 8;
    const auto target = static_cast<std::uint32_t>(first_row * kStageRowBytes + ((chunk ^ (first_row % 8)) << 4));
    const auto ask = [&](int index, int number) {
      Barrier& full = block_.full[index];
      full.arrive_expecting(operands.bytes);
      load_weights<kSteps>(operands, index, number);
    };
    const int steps = num_steps(call_, slot.task);
    const int tiles = kSteps == 1 ? 1 : operands.tiles;
    await_rows(operands.shared ? 0 : (steps + kSteps - 1) / kSteps * tiles, ask);
    const char* rows[rows_each];
#pragma unroll
    for (int i = 0; i < rows_each; ++i) {
      // Absent rows are computed as the first one, or as what the stage held, and not stored: rows of a product do not
      // touch each other.
      const int wanted = first_row + i * kRowsApart;
      const std::uint32_t row = wanted < static_cast<int>(slot.num_rows) ? static_cast<std::uint32_t>(wanted) : 0;
      rows[i] = operands.rows != nullptr ? operands.rows + row * operands.row_bytes
                                         : reinterpret_cast<const char*>(slot.rows[row]);
      rows[i] += chunk * 16;
    }
    // bytes_of(step): what a row has for this lane in each of the stage's steps.
    const auto load_stage = [&](int number, int offset, const auto& bytes_of) {
      if (asks() && number > 0 && number == ending_stage_) tell_ending();
      block_.empty[stage_.index()].wait(stage_.parity() ^ 1u);
      Barrier& full = block_.full[stage_.index()];
      const std::uint32_t stage = stage_address();
      if (asks() && number >= num_asked_) ask(stage_.index(), number);
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
#pragma unroll
        for (int i = 0; i < rows_each; ++i) {
          const int row = step * (kSteps == kHalfSteps ? kHalfStepRows : kDeepRows) + i * kRowsApart;
          copy_16(stage + target + static_cast<std::uint32_t>(row * kStageRowBytes),
                  rows[i] + offset + step * kStageRowBytes, bytes_of(step));
        }
      }
      if (operands.shared && asks()) load_shared_weights(operands, stage_.index(), number);
      full.arrive_when_copied();
      stage_.advance();
    };
    const auto load_stages = [&](int k_stage, int offset, const auto& bytes_of) {
      if constexpr (kSteps == 1) {
        load_stage(k_stage, offset, bytes_of);
      } else {
#pragma unroll 1
        for (int tile = 0; tile < tiles; ++tile) load_stage(k_stage * tiles + tile, offset, bytes_of);
      }
    };
    int step = 0;
    for (; step + kStepsAtOnce <= operands.k / kStageElements; step += kStepsAtOnce) {
#pragma unroll
      for (int i = 0; i < kStepsAtOnce; i += kSteps) {
        load_stages((step + i) / kSteps, i * kStageRowBytes, [](int) { return 16; });
      }
#pragma unroll
      for (int i = 0; i < rows_each; ++i) rows[i] += kStepsAtOnce * kStageRowBytes;
    }
    for (; step < steps; step += kSteps) {
      load_stages(step / kSteps, 0, [&](int more) { return (step + more) * kStageElements + chunk * 8 < operands.k ? 16 : 0; });
#pragma unroll
      for (int i = 0; i < rows_each; ++i) rows[i] += kSteps * kStageRowBytes;
    }
  }

  /// Rows in tagged packets, as they come. Those of the next stages are under way while a stage waits for its place.
  __device__ __forceinline__ void gather_tagged(const TaskSlot& slot, const Operands& operands) {
    constexpr int kAhead = 2;
    const auto ask = [&](int index, int number) {
      block_.full[index].arrive_expecting(operands.bytes);
      load_weights<kDeepSteps>(operands, index, number);
    };
    const int stages = num_deep_stages(call_, slot.task);
    // Asked for anew: what follows from them does not stay in registers through other gathers.
    const int lane = fresh_thread_index() % 32;
    const int warp = fresh_thread_index() / 32 - kFirstLoader;
    const TaggedRows rows(call_, slot, warp, lane);
    TaggedRows::Look looks[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) rows.look(looks[i], i);
    const auto target = static_cast<std::uint32_t>(lane / 16 * kDeepRows * kStageRowBytes + lane % 2 * 8);
    const int chunk = lane / 2 % 8;
#pragma unroll 1
    for (int first = 0; first < stages; first += kAhead) {
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        if (first + i >= stages) break;
#pragma unroll 1
        for (int tile = 0; tile < operands.tiles; ++tile) {
          const int number = (first + i) * operands.tiles + tile;
          if (asks() && number > 0 && number == ending_stage_) tell_ending();
          block_.empty[stage_.index()].wait(stage_.parity() ^ 1u);
          if (number == 0) {
            ask_ahead(stages * operands.tiles, ask);
          } else if (asks() && number >= num_asked_) {
            ask(stage_.index(), number);
          }
          if (tile == 0) {
            rows.await(looks[i], first + i, [&] {
              if (number == 0) ask_ahead(stages * operands.tiles, ask);
              return block_.stored[slot_.index()].test(slot_.parity());
            });
          }
#pragma unroll
          for (int j = 0; j < TaggedRows::kRowsEach; ++j) {
            const int row = warp + j * kLoaderWarps;
            store_shared_8(stage_address() + target + static_cast<std::uint32_t>(row * kStageRowBytes + ((chunk ^ (row % 8)) << 4)),
                           looks[i].data(j));
          }
          block_.full[stage_.index()].arrive();
          stage_.advance();
        }
        rows.look(looks[i], first + i + kAhead);
      }
    }
  }

  __device__ void tell_ending() { block_.ending[slot_.index()].arrive(); }

  /// Asks for weights of the product's first stages, as far as they are free; before the first is done with.
  template <class Ask>
  __device__ void ask_ahead(int steps, const Ask& ask) {
    if (!asks()) return;
    RingPosition<kStages> stage = stage_;
    for (int i = 0; i < num_asked_; ++i) stage.advance();
    while (num_asked_ < min(steps, kStages) && block_.empty[stage.index()].test(stage.parity() ^ 1u)) {
      ask(stage.index(), num_asked_++);
      stage.advance();
    }
  }

  /// Waits until the task's rows are there. What weights the stages hold until then is asked for before.
  template <class Ask>
  __device__ void await_rows(int steps, const Ask& ask) {
    if (asks()) {
      RingPosition<kStages> stage = stage_;
      while (num_asked_ < (steps < kStages ? steps : kStages) && !block_.stored[slot_.index()].test(slot_.parity())) {
        block_.empty[stage.index()].wait(stage.parity() ^ 1u);
        ask(stage.index(), num_asked_++);
        stage.advance();
      }
    }
    block_.stored[slot_.index()].wait(slot_.parity());
  }

  __device__ void load_down(const TaskSlot& slot, int tile, bool wide) {
    const Operands operands = down_operands(slot, tile, wide);
    const int steps = num_steps(call_, slot.task);
    const auto ask = [&](int index, int step) {
      block_.full[index].arrive_expecting(kTileRows * kStageRowBytes + operands.bytes);
      load_weights<1>(operands, index, step);
    };
    await_rows(operands.shared ? 0 : steps, ask);
    // The intermediate was stored by other threads; the foreman has acquired it.
    if (asks()) fence_async_global();
    for (int step = 0; step < steps; ++step) {
      if (asks() && step > 0 && step == ending_stage_) tell_ending();
      block_.empty[stage_.index()].wait(stage_.parity() ^ 1u);
      Barrier& full = block_.full[stage_.index()];
      if (asks()) {
        if (step >= num_asked_) ask(stage_.index(), step);
        load_box(stage_address(), maps_.intermediate, full, step * kStageElements,
                 static_cast<int>(slot.task.index) * kMostRows, keep_policy());
        if (operands.shared) load_shared_weights(operands, stage_.index(), step);
      }
      full.arrive();
      stage_.advance();
    }
  }

  const Call& call_;
  BlockMemory& block_;
  const TensorMaps& maps_;
  BlockPair<kPairs> pair_;
  int warp_;
  int lane_;
  std::uint32_t ready_parities_ = 0;  ///< of the next phase of each stage's `ready`; of the thread that asks
  int num_asked_ = 0;  ///< stages of the product whose weights are under way; of the thread that asks
  /// The stage kStagesAhead before the task's end, counted from the product's first; may be another product's.
  int ending_stage_ = 0;
  RingPosition<kTaskSlots> slot_;
  RingPosition<kStages> stage_;
};

}  // namespace flashmoe::cuda_backend::hopper
