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

/// `kPairs`: see moe_kernel().
template <DType dtype, bool kPairs>
class Consumer {
 public:
  /// `warp`: of the consumer warps.
  __device__ Consumer(const Call& call, const Fabric& fabric, const WeightsView& weights, BlockMemory& block, int warp)
      : call_(call), fabric_(fabric), weights_(weights), block_(block), warp_(warp),
        lane_(fresh_thread_index() % 32) {}

  /// Until the exit task.
  __device__ __forceinline__ void run() {
    std::uint32_t number = 0;  // of the task; from its slot when it is done, as registers are few while it runs
    while (true) {
      block_.filled[number % kTaskSlots].wait(parity_of(number));
      const TaskSlot& slot = block_.slots[number % kTaskSlots];
      if (slot.task.kind != TaskKind::exit) {
        block_.located[number % kTaskSlots].wait(parity_of(number));  // slot.rows and slot.weights are written
      }
      if (leads()) log().waited(SignalKind::task, call_.rank);
      if (slot.task.kind == TaskKind::exit) return;
      if (slot.task.kind == TaskKind::reduce) {
        if (warp_ < static_cast<int>(slot.num_rows)) {
          reduce_slot<dtype>(call_, fabric_, slot.task.wave_slot,
                             slot.task.tile * kReduceSlots + static_cast<std::uint32_t>(warp_));
          if (leads()) log().ran(slot.task);
        }
      } else {
        if (kPairs && slot.aligns) skip_to_first_stage();
        run_products(slot);
      }
      number = slot.number;
      block_.done[number % kTaskSlots].arrive();
      ++number;
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

  /// The first tile of the product that runs. Read from shared memory each time: while a product runs there is no register for it.
  __device__ int tile() const { return *static_cast<const volatile int*>(&block_.tiles[warp_]); }
  __device__ void set_tile(int tile) {
    WarpGroup::sync();
    if (lane_ == 0) block_.tiles[warp_] = tile;
    WarpGroup::sync();
  }

  /// As for_each_product().
  __device__ __forceinline__ void run_products(const TaskSlot& slot) {
    set_tile(static_cast<int>(slot.task.tile));
    while (true) {
      run_product(slot);
      const int next = tile_behind(slot, tile());
      if (next >= static_cast<int>(slot.task.tile) + slot.task.num_tiles) return;
      set_tile(next);
    }
  }

  __device__ __forceinline__ void run_product(const TaskSlot& slot) {
    if (!kPairs && slot.task.half != 0 && warp() / 4 > 0) {
      skip(num_half_stages(call_, slot.task));
    } else if (slot.decode) {
      run_decode(slot);
    } else if (warp() / 4 * (kTileRows / 2) >= static_cast<int>(slot.num_rows)) {
      skip(num_steps(call_, slot.task));
    } else {
      run_prefill(slot);
    }
  }

  __device__ __forceinline__ void run_decode(const TaskSlot& slot) {
    with_decode_rows(slot.num_rows, [&](auto rows) __attribute__((always_inline)) {
      run_decode<rows.value>(slot);
    });
  }

  template <int tokens>
  __device__ __forceinline__ void run_decode(const TaskSlot& slot) {
    if constexpr (tokens <= kDeepColumns) {
      if (slot.task.kind == TaskKind::up && call_.math.gated) return run_deep_up<tokens>(slot);
    }
    if constexpr (!kPairs && tokens <= 16) {
      if (is_quad(slot, tile())) return run_quad(slot);
    }
    Accumulators<tokens> first;
    Accumulators<tokens> second;
    clear(first);
    clear(second);
    multiply_tiles<tokens>(slot, tile(), first, second);
    if (leads()) log().ran(slot.task);
    const DecodeEpilogue<dtype, tokens> epilogue(call_, fabric_, weights_, block_, warp());
    if (slot.task.kind == TaskKind::up) {
      epilogue.store_up(slot, [&] { return tile(); }, first, second);
    } else {
      epilogue.store_down(slot, tile(), first, second);
    }
    if (leads()) log().worked();
  }

  /// Four down tiles, whose stages take turns.
  __device__ __forceinline__ void run_quad(const TaskSlot& slot) {
    Accumulators<kQuadRows> d[kQuadTiles];
#pragma unroll
    for (auto& sums : d) clear(sums);
    const std::uint32_t first_weight = first_weight_of_group();
    const int stages = num_deep_stages(call_, slot.task);
    int before = -1;
#pragma unroll 1
    for (int i = 0; i < stages; ++i) {
#pragma unroll
      for (auto& sums : d) {
        run_step<false>(before, true, [&](std::uint32_t stage) { multiply_stage<kQuadRows>(stage, first_weight, sums); });
      }
    }
    end_steps<false>(before);
    if (leads()) log().ran(slot.task);
    DecodeEpilogue<dtype, kQuadRows>(call_, fabric_, weights_, block_, warp()).store_quad(slot, tile(), d);
    if (leads()) log().worked();
  }

  /// Gated. Two tiles are stored one after the other, by the same code.
  template <int tokens>
  __device__ __forceinline__ void run_deep_up(const TaskSlot& slot) {
    Accumulators<tokens> d;
    Accumulators<tokens> next;
    clear(d);
    clear(next);
    multiply_tiles<tokens>(slot, tile(), d, next);
    if (leads()) log().ran(slot.task);
    const DecodeEpilogue<dtype, tokens> epilogue(call_, fabric_, weights_, block_, warp());
    int now = tile();
    const int last = is_wide(slot, now) ? now + 1 : now;
#pragma unroll 1
    while (true) {
      epilogue.store_deep_up(slot, now, d);
      if (now == last) break;
      ++now;
#pragma unroll
      for (int i = 0; i < tokens / 2; ++i) d[i] = next[i];
    }
    if (leads()) log().worked();
  }

  /// Not wide, the second half of the accumulators stays clear and is not stored.
  __device__ __forceinline__ void run_prefill(const TaskSlot& slot) {
    Accumulators<kTileColumns> d;
    clear(d);
    if (is_wide(slot, tile())) {
      multiply<kTileColumns>(slot, d);
    } else {
      multiply<kDownColumns>(slot, reinterpret_cast<Accumulators<kDownColumns>&>(d));
    }
    if (leads()) log().ran(slot.task);
    const int own = warp();
    if (own * 16 >= static_cast<int>(slot.num_rows)) return;
    const Epilogue<dtype> epilogue(call_, fabric_, weights_, block_, own);
    if (slot.task.kind == TaskKind::up) {
      epilogue.store_up(slot, [&] { return tile(); }, d);
    } else {
      epilogue.store_down(slot, tile(), d);
    }
    if (leads()) log().worked();
  }

  /// None of the warpgroup's rows exist.
  __device__ void skip(int steps) {
    for (int step = 0; step < steps; ++step) skip_stage();
  }
  __device__ void skip_stage() {
    block_.full[stage_.index()].wait(stage_.parity());
    release(stage_.index());
    stage_.advance();
  }
  /// See Loader.
  __device__ void skip_to_first_stage() {
    while (stage_.index() != 0) skip_stage();
  }

  __device__ void release(int stage) {
    if (lane_ == 0) block_.empty[stage].arrive();
  }

  /// The warpgroup's 64 rows by `columns` weight rows.
  template <int columns>
  __device__ __forceinline__ void multiply(const TaskSlot& slot, Accumulators<columns>& d) {
    const std::uint32_t first_row = uniform(static_cast<std::uint32_t>(warp() / 4 * kTileRows / 2 * kStageRowBytes));
    run_steps(num_steps(call_, slot.task), slot.task.kind == TaskKind::up, [&](std::uint32_t stage) {
      const std::uint64_t tokens = operand(stage + first_row);
      const std::uint64_t weights = operand(stage + kStageTokenBytes);
#pragma unroll
      for (int k = 0; k < kStageElements / 16; ++k) {
        const auto at = static_cast<std::uint64_t>(2 * k);
        wgmma<dtype, columns>(d, tokens + at, weights + at);
      }
    });
  }

  /// See run_steps(). Of more tokens products take too long to be waited for; of fewer it is slower (decision 24).
  __device__ static constexpr bool releases_at_once(int tokens) { return tokens > 16 && tokens <= kDeepColumns; }

  /// Both tiles of a wide decode product, its one, or half of it.
  template <int tokens>
  __device__ __forceinline__ void multiply_tiles(const TaskSlot& slot, int tile, Accumulators<tokens>& first,
                                                 Accumulators<tokens>& second) {
    if (!kPairs && tokens <= kHalfRows && slot.task.half != 0) {
      multiply_half<tokens>(slot, first);
    } else if (!is_wide(slot, tile)) {
      multiply_tile<tokens>(slot, first);
    } else if constexpr (tokens <= kDeepColumns) {
      multiply_in_turns<tokens>(slot, first, second);
    } else {
      multiply_halves<tokens>(slot, first, second);
    }
  }

  /// 64 weight rows of each half of a stage by up to `tokens` tokens.
  template <int tokens>
  __device__ __forceinline__ void multiply_halves(const TaskSlot& slot, Accumulators<tokens>& first,
                                                  Accumulators<tokens>& second) {
    const std::uint32_t first_weight = first_weight_of_group();
    run_steps(num_steps(call_, slot.task), true, [&](std::uint32_t stage) {
      const std::uint64_t rows = operand(stage);
      const std::uint64_t low = operand(stage + first_weight);
      const std::uint64_t high = operand(stage + first_weight + kStageWeightBytes / 2);
#pragma unroll
      for (int k = 0; k < kStageElements / 16; ++k) {
        const auto at = static_cast<std::uint64_t>(2 * k);
        wgmma<dtype, tokens>(first, low + at, rows + at);
        wgmma<dtype, tokens>(second, high + at, rows + at);
      }
    });
  }

  /// 64 weight rows of the first half, and, deep, of the second, which has the next step of k.
  template <int tokens>
  __device__ __forceinline__ static void multiply_stage(std::uint32_t stage, std::uint32_t first_weight, Accumulators<tokens>& d) {
#pragma unroll
    for (int step = 0; step < (tokens <= kDeepColumns ? kDeepSteps : 1); ++step) {
      const std::uint64_t rows = operand(stage + static_cast<std::uint32_t>(step * kDeepRows * kStageRowBytes));
      const std::uint64_t weights = operand(stage + first_weight + static_cast<std::uint32_t>(step * kStageWeightBytes / 2));
#pragma unroll
      for (int k = 0; k < kStageElements / 16; ++k) {
        const auto at = static_cast<std::uint64_t>(2 * k);
        wgmma<dtype, tokens>(d, weights + at, rows + at);
      }
    }
  }

  /// 64 weight rows of one tile by up to `tokens` tokens.
  template <int tokens>
  __device__ __forceinline__ void multiply_tile(const TaskSlot& slot, Accumulators<tokens>& d) {
    const std::uint32_t first_weight = first_weight_of_group();
    const int stages = tokens <= kDeepColumns ? num_deep_stages(call_, slot.task) : num_steps(call_, slot.task);
    run_steps<releases_at_once(tokens)>(stages, true,
                                        [&](std::uint32_t stage) { multiply_stage<tokens>(stage, first_weight, d); });
  }

  /// Half a tile: the first warpgroup alone, which is not what weights wait for: all stages are under way.
  template <int tokens>
  __device__ __forceinline__ void multiply_half(const TaskSlot& slot, Accumulators<tokens>& d) {
    run_steps<true>(num_half_stages(call_, slot.task), true, [&](std::uint32_t stage) {
#pragma unroll
      for (int step = 0; step < kHalfSteps; ++step) {
        const std::uint64_t rows = operand(stage + static_cast<std::uint32_t>(step * kHalfStepRows * kStageRowBytes));
        const std::uint64_t weights =
            operand(stage + static_cast<std::uint32_t>(kStageTokenBytes + step * kStageWeightBytes / kHalfSteps));
#pragma unroll
        for (int k = 0; k < kStageElements / 16; ++k) {
          const auto at = static_cast<std::uint64_t>(2 * k);
          wgmma<dtype, tokens>(d, weights + at, rows + at);
        }
      }
    });
  }

  /// Of two deep tiles, whose stages take turns.
  template <int tokens>
  __device__ __forceinline__ void multiply_in_turns(const TaskSlot& slot, Accumulators<tokens>& first,
                                                    Accumulators<tokens>& second) {
    constexpr bool kAtOnce = releases_at_once(tokens);
    const std::uint32_t first_weight = first_weight_of_group();
    const int stages = num_deep_stages(call_, slot.task);
    int before = -1;
    for (int i = 0; i < stages; ++i) {
      run_step<kAtOnce>(before, true, [&](std::uint32_t stage) { multiply_stage<tokens>(stage, first_weight, first); });
      run_step<kAtOnce>(before, true, [&](std::uint32_t stage) { multiply_stage<tokens>(stage, first_weight, second); });
    }
    end_steps<kAtOnce>(before);
  }

  /// Where in a stage the warpgroup's 64 weight rows of the first half begin.
  __device__ std::uint32_t first_weight_of_group() const {
    return uniform(kStageTokenBytes + static_cast<std::uint32_t>(warp() / 4 * 64 * kStageRowBytes));
  }

  /// Not left to the first wgmma: ptxas would keep what an accumulator held before alive all around the loop over
  /// tasks.
  template <int count>
  __device__ static void clear(float (&d)[count]) {
#pragma unroll
    for (float& element : d) element = 0.0f;
  }

  /// issue(stage): the wgmma of one stage. `gathered`: rows came by cp.async. One group of them runs while the next stage is
  /// waited for; a stage is released when the group after it has begun. `at_once`: as soon as its own has run, so that all stages
  /// are under way.
  template <bool at_once = false, class Issue>
  __device__ __forceinline__ void run_steps(int steps, bool gathered, const Issue& issue) {
    int before = -1;
    for (int step = 0; step < steps; ++step) run_step<at_once>(before, gathered, issue);
    end_steps<at_once>(before);
  }
  /// `before`: the stage to be released next; below 0: none.
  template <bool at_once, class Issue>
  __device__ __forceinline__ void run_step(int& before, bool gathered, const Issue& issue) {
    block_.full[stage_.index()].wait(stage_.parity());
    if (gathered) fence_async_shared();
    wgmma_fence();
    issue(uniform(shared_address(block_.stages[stage_.index()])));
    wgmma_commit();
    if constexpr (at_once) {
      wgmma_wait<0>();
      release(stage_.index());
    } else {
      if (before >= 0) {
        wgmma_wait<1>();
        release(before);
      }
      before = stage_.index();
    }
    stage_.advance();
  }
  template <bool at_once>
  __device__ __forceinline__ void end_steps(int before) {
    if constexpr (at_once) return;
    wgmma_wait<0>();
    release(before);
  }

  const Call& call_;
  const Fabric& fabric_;
  const WeightsView& weights_;
  BlockMemory& block_;
  int warp_;
  int lane_;
  RingPosition<kStages> stage_;
};

}  // namespace flashmoe::cuda_backend::hopper
