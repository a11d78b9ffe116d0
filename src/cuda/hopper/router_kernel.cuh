// The router of bf16 and fp16 on Hopper, in one launch. A cluster has one tile of tokens. One warp of a block streams the
// block's experts and its split of hidden, two warpgroups multiply; then the splits are summed through distributed shared
// memory, and each block routes its share of the tile's tokens. See RouterGrid.
#pragma once

#include <cstdint>

#include "cuda/cluster.cuh"
#include "cuda/hopper/wgmma.cuh"
#include "cuda/hopper/ptx.cuh"
#include "cuda/hopper/router_launch.hpp"
#include "cuda/hopper/router_shape.hpp"
#include "cuda/mma.cuh"
#include "cuda/router_args.hpp"
#include "cuda/router_choice.cuh"

namespace flashmoe::cuda_backend::hopper {

/// Shared memory of a block.
template <int kRows>
struct RouterTile {
  static constexpr int kStageElements = kStageRowBytes / 2;
  static constexpr int kGateBytes = kRouterColumns * kStageRowBytes;
  static constexpr int kRowsBytes = kRows * kStageRowBytes;
  static constexpr int kStageBytes = kGateBytes + kRowsBytes;
  static constexpr int kSumsStride = kRouterColumns + 4;  // no two lanes that store meet in a bank
  static constexpr int kStages = (200 * 1024 - kRows * kSumsStride * 4) / kStageBytes;

  char stages[kStages][kStageBytes];
  float sums[kRows][kSumsStride];
  float gate_bias[GpuRouterLimits::num_experts];       ///< zeros without one
  float selection_bias[GpuRouterLimits::num_experts];  ///< where there is one
  Barrier full[kStages];                               ///< 1, with the bytes of both operands
  Barrier empty[kStages];                              ///< every consumer warp

  /// In place of the stages after the product: [rows of the block's share][padded experts], then the warps' scratch.
  __device__ float* logits() { return reinterpret_cast<float*>(stages); }
  static_assert((kRows * kRouterColumns + kRouterConsumers * kChoiceScratch) * 4 <=
                kStages * kStageBytes);
};

template <DType dtype, int kRows>
class RouterBlock {
  using Tile = RouterTile<kRows>;
  using Sums = Accumulators<kRows>;

 public:
  __device__ RouterBlock(const RouterArgs& args, const RouterGrid& grid, const RouterMaps& maps, Tile& tile)
      : args_(args), grid_(grid), maps_(maps), tile_(tile), place_(ClusterPlace::here()),
        num_chunks_((args.hidden + Tile::kStageElements - 1) / Tile::kStageElements) {
    num_tokens_ = args.num_tokens == nullptr ? args.max_tokens : min(*args.num_tokens, args.max_tokens);
    first_token_ = static_cast<std::int64_t>(blockIdx.x) / place_.size * kRows;
  }

  __device__ __forceinline__ void run() {
    if (first_token_ >= num_tokens_) return;  // the whole cluster
    init();
    if (warp() < kRouterConsumers) {
      if constexpr (kRows == kTallTile) take_registers<kConsumerRegisters>();
      multiply();
      ClusterPlace::sync();  // all sums are there, and nobody reads the stages that the logits overwrite
      route();
      ClusterPlace::sync();  // nobody leaves while others read its sums
    } else {
      if constexpr (kRows == kTallTile) give_up_registers<kLoaderRegisters>();
      if (warp() == kRouterConsumers) {
        load();
      } else {
        fetch_biases();
      }
      __syncwarp();
      ClusterPlace::sync();
      ClusterPlace::sync();
    }
  }

 private:
  // A thread of a tall tile holds 64 sums of three parts or pairs of them.
  static constexpr int kConsumerRegisters = 240;
  static constexpr int kLoaderRegisters = 24;
  static constexpr int kConsumerThreads = kRouterConsumers * 32;

  __device__ static void sync_consumers() { named_barrier<1, kConsumerThreads>(); }

  __device__ static int warp() { return static_cast<int>(threadIdx.x) / 32; }
  __device__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }
  __device__ int column() const { return place_.rank & (grid_.columns - 1); }
  __device__ int split() const { return place_.rank / grid_.columns; }
  __device__ int num_parts() const { return kRouterParts / grid_.splits; }
  __device__ int first_part() const { return split() * num_parts(); }
  __device__ int begin_of(int part) const { return part * num_chunks_ / kRouterParts; }

  __device__ void init() {
    if (threadIdx.x == 0) {
      for (int stage = 0; stage < Tile::kStages; ++stage) {
        tile_.full[stage].init(1);
        tile_.empty[stage].init(kRouterConsumers);
      }
      fence_barrier_init();
    }
    __syncthreads();
  }

  __device__ void load() {
    if (lane() != 0) return;
    const std::uint64_t policy = keep_policy();
    const int box = gate_box(args_.num_experts);
    const int first_expert = column() * kRouterColumns;
    const int end_expert = min(args_.num_experts, first_expert + kRouterColumns);
    const int num_boxes = max(0, (end_expert - first_expert + box - 1) / box);
    RingPosition<Tile::kStages> ring;
    const int end = begin_of(first_part() + num_parts());
    for (int chunk = begin_of(first_part()); chunk < end; ++chunk) {
      tile_.empty[ring.index()].wait(ring.parity() ^ 1u);
      Barrier& full = tile_.full[ring.index()];
      const std::uint32_t target = shared_address(tile_.stages[ring.index()]);
      const int element = chunk * Tile::kStageElements;
      full.arrive_expecting(Tile::kRowsBytes + num_boxes * box * kStageRowBytes);
      for (int i = 0; i < num_boxes; ++i) {
        load_box(target + static_cast<std::uint32_t>(i * box * kStageRowBytes), maps_.gate, full, element,
                 first_expert + i * box, policy);
      }
      load_box(target + Tile::kGateBytes, maps_.x, full, element, static_cast<int>(first_token_), policy);
      ring.advance();
    }
  }

  /// By the last three warps, for after the product.
  __device__ void fetch_biases() {
    const int first = static_cast<int>(threadIdx.x) - kConsumerThreads - 32;
    for (int expert = first; expert < args_.num_experts; expert += 96) {
      tile_.gate_bias[expert] = args_.gate_bias != nullptr ? args_.gate_bias[expert] : 0.0f;
      if (args_.selection_bias != nullptr) tile_.selection_bias[expert] = args_.selection_bias[expert];
    }
  }

  __device__ void release(int stage) {
    if (lane() == 0) tile_.empty[stage].arrive();
  }

  __device__ static void clear(Sums& sums) {
#pragma unroll
    for (float& sum : sums) sum = 0.0f;
  }
  __device__ static void copy(Sums& to, const Sums& from) {
#pragma unroll
    for (int i = 0; i < kRows / 2; ++i) to[i] = from[i];
  }
  __device__ static void add(Sums& later, const Sums& earlier) {
#pragma unroll
    for (int i = 0; i < kRows / 2; ++i) later[i] = earlier[i] + later[i];
  }

  /// Adds up the products of chunks [chunk, end).
  __device__ __forceinline__ void multiply_part(int chunk, int end, RingPosition<Tile::kStages>& ring, Sums& sums) {
    const std::uint32_t first_expert = static_cast<std::uint32_t>(warp()) / 4 * 64 * kStageRowBytes;
    clear(sums);
    int before = -1;
    for (; chunk < end; ++chunk) {
      tile_.full[ring.index()].wait(ring.parity());
      const std::uint32_t operands = shared_address(tile_.stages[ring.index()]);
      const std::uint64_t experts = operand(operands + first_expert);
      const std::uint64_t tokens = operand(operands + Tile::kGateBytes);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < Tile::kStageElements / 16; ++k) {
        const auto at = static_cast<std::uint64_t>(2 * k);
        wgmma<dtype, kRows>(sums, experts + at, tokens + at);
      }
      wgmma_commit();
      if (before >= 0) {
        wgmma_wait<1>();
        release(before);
      }
      before = ring.index();
      ring.advance();
    }
    wgmma_wait<0>();
    if (before >= 0) release(before);
  }

  /// Sums of this block's parts, added as a binary tree: up to four of them in registers, eight by way of shared memory.
  __device__ __forceinline__ void multiply() {
    RingPosition<Tile::kStages> ring;
    Sums sums;
    Sums one;
    Sums two;
    clear(one);
    clear(two);
    for (int i = 0; i < num_parts(); ++i) {
      const int part = first_part() + i;
      multiply_part(begin_of(part), begin_of(part + 1), ring, sums);
      const bool last = i + 1 == num_parts();
      if (i % 2 == 0 && !last) {
        copy(one, sums);
      } else {
        if (i % 2 == 1) add(sums, one);
        if (i % 4 == 3) {
          add(sums, two);
        } else if (!last) {
          copy(two, sums);
        }
        if (i % 4 == 3 || last) store(sums, i >= 4);
      }
    }
  }

  /// See Accumulators. `again`: added to what this thread stored before.
  __device__ void store(const Sums& sums, bool again) {
    float* first = &tile_.sums[lane() % 4 * 2][warp() * 16 + lane() / 4];
#pragma unroll
    for (int i = 0; i < kRows / 2; ++i) {
      float& cell = first[(i / 4 * 8 + i % 2) * Tile::kSumsStride + i / 2 % 2 * 8];
      cell = again ? cell + sums[i] : sums[i];
    }
  }

  /// Four sums of kSplits blocks, as a binary tree.
  template <int kSplits>
  __device__ float4 sum_splits(const float* cell, int column) const {
    float4 sums[kSplits];
#pragma unroll
    for (int split = 0; split < kSplits; ++split) {
      sums[split] = ClusterPlace::load(reinterpret_cast<const float4*>(cell), split * grid_.columns + column);
    }
#pragma unroll
    for (int width = 1; width < kSplits; width *= 2) {
#pragma unroll
      for (int split = 0; split < kSplits; split += 2 * width) {
        float4& a = sums[split];
        const float4& b = sums[split + width];
        a = make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
      }
    }
    return sums[0];
  }

  __device__ int padded_experts() const { return (args_.num_experts + 3) / 4 * 4; }

  /// Logits of rows [first_row, first_row + num_rows) of the tile.
  template <int kSplits>
  __device__ void gather_logits(int first_row, int num_rows) {
    const int width = padded_experts() / 4;
#pragma unroll 2
    for (int i = static_cast<int>(threadIdx.x); i < num_rows * width; i += kConsumerThreads) {
      const int row = i / width;
      const int expert = i % width * 4;
      const float* cell = &tile_.sums[first_row + row][expert % kRouterColumns];
      const float4 four = sum_splits<kSplits>(cell, expert / kRouterColumns);
      float values[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (expert + j < args_.num_experts) values[j] += tile_.gate_bias[expert + j];
      }
      *reinterpret_cast<float4*>(tile_.logits() + row * padded_experts() + expert) =
          make_float4(values[0], values[1], values[2], values[3]);
      const std::int64_t token = first_token_ + first_row + row;
      if (args_.logits == nullptr || token >= num_tokens_) continue;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (expert + j < args_.num_experts) args_.logits[token * args_.num_experts + expert + j] = values[j];
      }
    }
    sync_consumers();
  }

  /// Each warp routes tokens of this block's share.
  __device__ void route() {
    const int num_rows = kRows / place_.size;
    const int first_row = place_.rank * num_rows;
    switch (grid_.splits) {
      case 1: gather_logits<1>(first_row, num_rows); break;
      case 2: gather_logits<2>(first_row, num_rows); break;
      case 4: gather_logits<4>(first_row, num_rows); break;
      default: gather_logits<8>(first_row, num_rows); break;
    }
    const int num_own = (num_rows + kRouterConsumers - 1) / kRouterConsumers;
    const int own = warp() * num_own;  // first of the warp's rows
    const std::int64_t token = first_token_ + first_row + own;
    const std::int64_t num_routed = min(std::int64_t{min(num_own, num_rows - own)}, num_tokens_ - token);
    if (num_routed <= 0) return;
    route_tokens(args_,
                 {.logits = tile_.logits() + own * padded_experts(),
                  .stride = padded_experts(),
                  .selection_bias = args_.selection_bias != nullptr ? tile_.selection_bias : nullptr,
                  .scratch = reinterpret_cast<std::uint32_t*>(tile_.logits() + num_rows * padded_experts()) +
                             warp() * kChoiceScratch,
                  .ids = args_.topk_ids + token * args_.top_k,
                  .weights = args_.topk_weights + token * args_.top_k},
                 static_cast<int>(num_routed));
  }

  const RouterArgs& args_;
  const RouterGrid& grid_;
  const RouterMaps& maps_;
  Tile& tile_;
  ClusterPlace place_;
  int num_chunks_;
  std::int64_t num_tokens_;
  std::int64_t first_token_;
};

template <DType dtype, int kRows>
__global__ void __launch_bounds__(kRouterThreads, 1)
    router_kernel(const __grid_constant__ RouterArgs args, const __grid_constant__ RouterGrid grid,
                  const __grid_constant__ RouterMaps maps) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) char shared[];
  RouterBlock<dtype, kRows>(args, grid, maps, *reinterpret_cast<RouterTile<kRows>*>(shared)).run();
#else
  __trap();  // chosen for compute capability 9.0 alone
#endif
}

template <DType dtype, int kRows>
RouterKernel make_router_kernel() {
  return {.function = reinterpret_cast<const void*>(&router_kernel<dtype, kRows>),
          .shared_bytes = sizeof(RouterTile<kRows>)};
}

template <DType dtype>
RouterKernel router_kernel_of(int rows) {
  switch (rows) {
    case 16: return make_router_kernel<dtype, 16>();
    case 64: return make_router_kernel<dtype, 64>();
    default: return make_router_kernel<dtype, 128>();
  }
}

}  // namespace flashmoe::cuda_backend::hopper
