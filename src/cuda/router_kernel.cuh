// The router in one launch. A cluster of blocks shares one tile of tokens: each block computes its parts of hidden, the
// parts are summed through distributed shared memory, and each block routes its share of the tile's tokens.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/cluster.cuh"
#include "cuda/router_args.hpp"
#include "cuda/router_choice.cuh"
#include "cuda/router_product.cuh"
#include "cuda/router_variants.hpp"

namespace flashmoe::cuda_backend {

/// Parts of hidden, summed as ((p0 + p1) + (p2 + p3)) + ... whatever the cluster's size: 1, 8 or 16 blocks.
inline constexpr int kRouterParts = 16;
inline constexpr int kRouterWarps = kRouterThreads / 32;

/// Shared memory of a block: stages of operands, where the warps' scratch lies after the product, then the sums.
template <int kRows, int kNumStages>
struct RouterTile {
  static constexpr int kStages = kNumStages;
  static constexpr int kStageBytes = (kRows + kRouterColumns) * kStageRowBytes;

  __host__ __device__ static constexpr int sums_stride(int num_experts) { return num_experts + 4; }
  static constexpr int kScratchBytes = kRouterWarps * kChoiceScratch * static_cast<int>(sizeof(float));
  static constexpr int kStagesBytes = kStages * kStageBytes > kScratchBytes ? kStages * kStageBytes : kScratchBytes;
  __host__ __device__ static constexpr int shared_bytes(int num_experts) {
    return kStagesBytes + kRows * sums_stride(num_experts) * static_cast<int>(sizeof(float));
  }
};

template <DType dtype, int kRows, int kStages>
class RouterBlock {
  using Tile = RouterTile<kRows, kStages>;
  static constexpr int kElementBytes = dtype == DType::fp32 ? 4 : 2;
  static constexpr int kFetchRows = kRouterThreads / 8;
  static constexpr int kTokenFetches = (kRows + kFetchRows - 1) / kFetchRows;
  static constexpr int kExpertFetches = kRouterColumns / kFetchRows;

 public:
  __device__ RouterBlock(const RouterArgs& args, char* shared)
      : args_(args), stages_(shared), sums_(reinterpret_cast<float*>(shared + Tile::kStagesBytes)),
        stride_(Tile::sums_stride(args.num_experts)), place_(ClusterPlace::here()),
        row_bytes_(std::int64_t{args.hidden} * kElementBytes) {
    num_tokens_ = args.num_tokens == nullptr ? args.max_tokens : min(*args.num_tokens, args.max_tokens);
    first_token_ = static_cast<std::int64_t>(blockIdx.x) / place_.size * kRows;
    num_chunks_ = static_cast<int>((row_bytes_ + kStageRowBytes - 1) / kStageRowBytes);
    const int row = static_cast<int>(threadIdx.x) / 8;
#pragma unroll
    for (int i = 0; i < kTokenFetches; ++i) {
      const std::int64_t token = first_token_ + row + i * kFetchRows;
      const bool exists = row + i * kFetchRows < kRows && token < num_tokens_;
      tokens_[i] = exists ? static_cast<const char*>(args.x) + token * row_bytes_ : nullptr;
    }
  }

  __device__ void run() {
    if (first_token_ >= num_tokens_) return;  // the whole cluster
    multiply();
    ClusterPlace::sync();
    route();
    ClusterPlace::sync();  // nobody leaves while others read its sums
  }

 private:
  using Product = RouterProduct<dtype, kRows>;

  __device__ int num_column_tiles() const { return (args_.num_experts + kRouterColumns - 1) / kRouterColumns; }
  __device__ int first_part() const { return place_.rank * (kRouterParts / place_.size); }
  __device__ int end_part() const { return first_part() + kRouterParts / place_.size; }
  __device__ int begin_of(int part) const { return part * num_chunks_ / kRouterParts; }

  /// Experts whose rows this thread fetches: those of column tile `column`, kFetchRows apart.
  __device__ void point_at_experts(int column) {
    const int first = column * kRouterColumns + static_cast<int>(threadIdx.x) / 8;
#pragma unroll
    for (int i = 0; i < kExpertFetches; ++i) {
      const int expert = first + i * kFetchRows;
      experts_[i] = expert < args_.num_experts ? static_cast<const char*>(args_.gate) + expert * row_bytes_ : nullptr;
    }
  }

  /// A thread fetches the same 16 bytes of k of every row it has.
  __device__ void fetch_stage(int chunk_of_hidden, std::uint32_t stage) const {
    const int chunk = static_cast<int>(threadIdx.x) % 8;
    const int first = static_cast<int>(threadIdx.x) / 8;
    const int at = chunk_of_hidden * kStageRowBytes + chunk * 16;
    const bool inside = at < row_bytes_;
#pragma unroll
    for (int i = 0; i < kTokenFetches; ++i) {
      if (first + i * kFetchRows >= kRows) break;
      fetch_chunk(stage, first + i * kFetchRows, chunk, inside && tokens_[i] != nullptr ? tokens_[i] + at : nullptr);
    }
#pragma unroll
    for (int i = 0; i < kExpertFetches; ++i) {
      fetch_chunk(stage + kRows * kStageRowBytes, first + i * kFetchRows, chunk,
                  inside && experts_[i] != nullptr ? experts_[i] + at : nullptr);
    }
  }

  __device__ static std::uint32_t after(std::uint32_t stage, std::uint32_t first_stage) {
    stage += Tile::kStageBytes;
    return stage == first_stage + kStages * Tile::kStageBytes ? first_stage : stage;
  }

  /// sums_[row][expert]: the sum over this block's parts. Stages come in the order of hidden, 128 experts after the others;
  /// what changes with a part or a column tile alone is kept out of the loop over stages.
  __device__ void multiply() {
    const auto first_stage = static_cast<std::uint32_t>(__cvta_generic_to_shared(stages_));
    const int num_columns = num_column_tiles();
    const int begin = begin_of(first_part());
    const int end = begin_of(end_part());
    if (begin == end) {
      clear_sums();
      return;
    }
    int next_column = 0;
    int next_chunk = begin;
    std::uint32_t next_stage = first_stage;
    point_at_experts(0);
    const auto fetch_next = [&] {
      if (next_column < num_columns) {
        fetch_stage(next_chunk, next_stage);
        if (++next_chunk == end) {
          next_chunk = begin;
          point_at_experts(++next_column);
        }
      }
      next_stage = after(next_stage, first_stage);
      asm volatile("cp.async.commit_group;" ::: "memory");
    };
    for (int i = 0; i < kStages - 1; ++i) fetch_next();

    std::uint32_t stage = first_stage;
    for (int column = 0; column < num_columns; ++column) {
      Product product;
      product.clear();
      Product even;  // the sum of an even part, until the odd one beside it is there
      even.clear();
      int part = first_part();
      while (begin_of(part + 1) == begin) ++part;
      int part_end = begin_of(part + 1);
      bool first = true;
      for (int chunk = begin; chunk < end; ++chunk) {
        asm volatile("cp.async.wait_group %0;" ::"n"(kStages - 2) : "memory");
        __syncthreads();  // the stage is here for all, and nobody reads the one fetched into next
        fetch_next();
        product.multiply_stage(stage, stage + kRows * kStageRowBytes);
        stage = after(stage, first_stage);
        while (chunk + 1 == part_end && part < end_part()) {
          if (part % 2 == 0 && part + 1 < end_part()) {
            even = product;
          } else {
            product.add(even);
            even.clear();
            store_sums(product, column * kRouterColumns, !first);
            first = false;
          }
          product.clear();
          ++part;
          part_end = begin_of(part + 1);
        }
      }
    }
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    __syncthreads();
  }

  __device__ void store_sums(const Product& product, int first_expert, bool add) {
    product.for_each([&](int row, int column, float sum) {
      const int expert = first_expert + column;
      if (expert >= args_.num_experts) return;
      float& cell = sums_[row * stride_ + expert];
      cell = add ? cell + sum : sum;
    });
  }

  __device__ void clear_sums() {
    for (int i = static_cast<int>(threadIdx.x); i < kRows * stride_; i += kRouterThreads) sums_[i] = 0.0f;
    __syncthreads();
  }

  /// A logit from the sums of kBlocks blocks. Blocks of one part each are paired first.
  template <int kBlocks>
  __device__ float logit(const float* cell) const {
    float parts[kBlocks];
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) parts[block] = ClusterPlace::load(cell, block);
    if constexpr (kBlocks == kRouterParts) {
#pragma unroll
      for (int block = 0; block < kBlocks; block += 2) parts[block / 2] = parts[block] + parts[block + 1];
    }
    float sum = parts[0];
#pragma unroll
    for (int pair = 1; pair < kRouterParts / 2; ++pair) sum += parts[pair];
    return sum;
  }
  __device__ float logit(int row, int expert) const {
    const float* cell = sums_ + row * stride_ + expert;
    const float sum = place_.size == kRouterParts       ? logit<kRouterParts>(cell)
                      : place_.size == kRouterParts / 2 ? logit<kRouterParts / 2>(cell)
                                                        : *cell;
    return args_.gate_bias == nullptr ? sum : sum + args_.gate_bias[expert];
  }

  /// Logits of this block's share of the tile's rows, by all threads: sums of other blocks come from afar. A row's own sums
  /// are read by nobody else, so its logits take their place.
  __device__ void gather_logits(int first_row, int num_rows) {
    const int num_cells = num_rows * args_.num_experts;
    for (int cell = static_cast<int>(threadIdx.x); cell < num_cells; cell += kRouterThreads) {
      const int row = first_row + cell / args_.num_experts;
      const int expert = cell % args_.num_experts;
      const float value = logit(row, expert);
      sums_[row * stride_ + expert] = value;
      if (args_.logits != nullptr && first_token_ + row < num_tokens_) {
        args_.logits[(first_token_ + row) * args_.num_experts + expert] = value;
      }
    }
    __syncthreads();
  }

  /// Each warp routes tokens of this block's share.
  __device__ void route() {
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const int rows = kRows / place_.size;
    gather_logits(place_.rank * rows, rows);
    const int num_own = (rows + kRouterWarps - 1) / kRouterWarps;
    const int own = place_.rank * rows + warp * num_own;  // first of the warp's rows
    const std::int64_t token = first_token_ + own;
    const int end = min((warp + 1) * num_own, rows) + place_.rank * rows;
    const std::int64_t num_routed = min(std::int64_t{end - own}, num_tokens_ - token);
    if (num_routed <= 0) return;
    route_tokens(args_,
                 {.logits = sums_ + own * stride_,
                  .stride = stride_,
                  .selection_bias = args_.selection_bias,
                  .scratch = reinterpret_cast<std::uint32_t*>(stages_) + warp * kChoiceScratch,
                  .ids = args_.topk_ids + token * args_.top_k,
                  .weights = args_.topk_weights + token * args_.top_k},
                 static_cast<int>(num_routed));
  }

  const RouterArgs& args_;
  char* stages_;
  float* sums_;  // [kRows][stride_]
  int stride_;
  ClusterPlace place_;
  std::int64_t row_bytes_;
  std::int64_t num_tokens_;
  std::int64_t first_token_;
  int num_chunks_;
  const char* tokens_[kTokenFetches];    // rows of x this thread fetches, null where there is none
  const char* experts_[kExpertFetches];  // the same of the gate, in the column tile fetched now
};

template <DType dtype, int kRows, int kStages>
__global__ void __launch_bounds__(kRouterThreads, 1) router_kernel(const __grid_constant__ RouterArgs args) {
  extern __shared__ __align__(128) char shared[];
  RouterBlock<dtype, kRows, kStages>(args, shared).run();
}

/// The tiles of one dtype, the best first: tall ones, and more stages where the memory is there.
template <DType dtype>
RouterVariants make_router_variants() {
  const auto variant = []<int kRows, int kStages>(std::integral_constant<int, kRows>, std::integral_constant<int, kStages>) {
    return RouterVariant{reinterpret_cast<const void*>(&router_kernel<dtype, kRows, kStages>), kRows,
                         &RouterTile<kRows, kStages>::shared_bytes};
  };
  return {variant(std::integral_constant<int, 64>{}, std::integral_constant<int, 6>{}),
          variant(std::integral_constant<int, 64>{}, std::integral_constant<int, 3>{}),
          variant(std::integral_constant<int, 16>{}, std::integral_constant<int, 8>{}),
          variant(std::integral_constant<int, 16>{}, std::integral_constant<int, 3>{})};
}

}  // namespace flashmoe::cuda_backend
