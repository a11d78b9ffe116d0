// The router in one launch. A cluster of blocks shares one tile of tokens: each block computes its parts of hidden, the
// parts are summed through distributed shared memory, and each block routes its share of the tile's tokens.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/router_args.hpp"
#include "cuda/router_choice.cuh"
#include "cuda/router_product.cuh"
#include "cuda/router_variants.hpp"

namespace flashmoe::cuda_backend {

/// Parts of hidden, summed as ((p0 + p1) + (p2 + p3)) + ... whatever the cluster's size: 1, 8 or 16 blocks.
inline constexpr int kRouterParts = 16;
inline constexpr int kRouterWarps = kRouterThreads / 32;

/// Shared memory of a block: stages of operands, where the tokens' scores lie after the product, then the sums.
template <int kRows, int kNumStages>
struct RouterTile {
  static constexpr int kStages = kNumStages;
  static constexpr int kStageBytes = (kRows + kRouterColumns) * kStageRowBytes;

  __host__ __device__ static constexpr int sums_stride(int num_experts) { return num_experts + 4; }
  __host__ __device__ static constexpr int stages_bytes(int num_experts) {
    const int scores = kRouterWarps * num_experts * static_cast<int>(sizeof(float));
    return kStages * kStageBytes > scores ? kStages * kStageBytes : scores;
  }
  __host__ __device__ static constexpr int shared_bytes(int num_experts) {
    return stages_bytes(num_experts) + kRows * sums_stride(num_experts) * static_cast<int>(sizeof(float));
  }
};

struct ClusterPlace {
  int rank = 0;  ///< of this block in its cluster
  int size = 1;

  __device__ static ClusterPlace here() {
    ClusterPlace place;
#if __CUDA_ARCH__ >= 900
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(place.rank));
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(place.size));
#endif
    return place;
  }
  /// Orders the shared memory of all blocks of the cluster.
  __device__ static void sync() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release; barrier.cluster.wait.acquire;" ::: "memory");
#else
    __syncthreads();
#endif
  }
  /// *address of block `rank`.
  __device__ static float load(const float* address, int rank) {
#if __CUDA_ARCH__ >= 900
    const auto local = static_cast<std::uint32_t>(__cvta_generic_to_shared(address));
    std::uint32_t remote;
    float value;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(local), "r"(rank));
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(remote) : "memory");
    return value;
#else
    return *address;
#endif
  }
};

template <DType dtype, int kRows, int kStages>
class RouterBlock {
  using Tile = RouterTile<kRows, kStages>;
  static constexpr int kElementBytes = dtype == DType::fp32 ? 4 : 2;
  static constexpr int kFetchRows = kRouterThreads / 8;
  static constexpr int kTokenFetches = (kRows + kFetchRows - 1) / kFetchRows;

 public:
  __device__ RouterBlock(const RouterArgs& args, char* shared)
      : args_(args), stages_(shared), sums_(reinterpret_cast<float*>(shared + Tile::stages_bytes(args.num_experts))),
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

  /// A stage's place in this block's share of the product: 128 experts, then a part of hidden, then 128 bytes of it.
  struct Cursor {
    int column = 0;
    int part = 0;
    int chunk = 0;
  };

  __device__ int num_column_tiles() const { return (args_.num_experts + kRouterColumns - 1) / kRouterColumns; }
  __device__ int first_part() const { return place_.rank * (kRouterParts / place_.size); }
  __device__ int end_part() const { return first_part() + kRouterParts / place_.size; }
  __device__ int begin_of(int part) const { return part * num_chunks_ / kRouterParts; }

  __device__ Cursor start(int column) const {
    Cursor cursor{column, first_part(), begin_of(first_part())};
    skip_empty(cursor);
    return cursor;
  }
  __device__ void skip_empty(Cursor& cursor) const {
    while (cursor.part < end_part() && cursor.chunk == begin_of(cursor.part + 1)) ++cursor.part;
    if (cursor.part == end_part()) cursor = {cursor.column + 1, first_part(), begin_of(first_part())};
  }
  __device__ void advance(Cursor& cursor) const {
    const int column = cursor.column;
    ++cursor.chunk;
    skip_empty(cursor);
    if (cursor.column != column) skip_empty(cursor);
  }

  /// A thread fetches the same 16 bytes of k of rows kFetchRows apart.
  __device__ void fetch_stage(const Cursor& cursor, std::uint32_t stage) const {
    const int chunk = static_cast<int>(threadIdx.x) % 8;
    const int first = static_cast<int>(threadIdx.x) / 8;
    const std::int64_t at = std::int64_t{cursor.chunk} * kStageRowBytes + chunk * 16;
    const bool inside = at < row_bytes_;
#pragma unroll
    for (int i = 0; i < kTokenFetches; ++i) {
      if (first + i * kFetchRows >= kRows) break;
      fetch_chunk(stage, first + i * kFetchRows, chunk, inside && tokens_[i] != nullptr ? tokens_[i] + at : nullptr);
    }
    const char* gate = static_cast<const char*>(args_.gate) + at;
#pragma unroll
    for (int i = 0; i < kRouterColumns / kFetchRows; ++i) {
      const int expert = cursor.column * kRouterColumns + first + i * kFetchRows;
      const bool exists = inside && expert < args_.num_experts;
      fetch_chunk(stage + kRows * kStageRowBytes, first + i * kFetchRows, chunk,
                  exists ? gate + expert * row_bytes_ : nullptr);
    }
  }

  /// sums_[row][expert]: the sum over this block's parts.
  __device__ void multiply() {
    const auto base = static_cast<std::uint32_t>(__cvta_generic_to_shared(stages_));
    const int num_columns = num_column_tiles();
    if (begin_of(first_part()) == begin_of(end_part())) {
      clear_sums();
      return;
    }
    Cursor next = start(0);
    int num_fetched = 0;
    const auto fetch_next = [&] {
      if (next.column < num_columns) {
        fetch_stage(next, base + static_cast<std::uint32_t>(num_fetched % kStages * Tile::kStageBytes));
        advance(next);
      }
      ++num_fetched;
      asm volatile("cp.async.commit_group;" ::: "memory");
    };
    for (int i = 0; i < kStages - 1; ++i) fetch_next();

    Product product;
    product.clear();
    Product even;  // the sum of an even part, until the odd one beside it is there
    even.clear();
    Cursor at = start(0);
    bool first = true;  // of the column tile
    for (int index = 0; at.column < num_columns; ++index) {
      asm volatile("cp.async.wait_group %0;" ::"n"(kStages - 2) : "memory");
      __syncthreads();  // the stage is here for all, and nobody reads the one fetched into next
      fetch_next();
      const std::uint32_t stage = base + static_cast<std::uint32_t>(index % kStages * Tile::kStageBytes);
      product.multiply_stage(stage, stage + kRows * kStageRowBytes);
      const Cursor before = at;
      advance(at);
      if (at.part == before.part && at.column == before.column) continue;
      const bool last = at.column != before.column;
      if (!last && before.part % 2 == 0 && at.part == before.part + 1) {
        even = product;
      } else {
        product.add(even);
        even.clear();
        store_sums(product, before.column * kRouterColumns, !first);
        first = last;
      }
      product.clear();
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

  /// Each warp routes tokens of this block's share of the tile's rows. A row's own sums are read by nobody else, so its
  /// logits take their place.
  __device__ void route() {
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int rows = kRows / place_.size;
    float* scores = reinterpret_cast<float*>(stages_) + warp * args_.num_experts;
    for (int row = place_.rank * rows + warp; row < (place_.rank + 1) * rows; row += kRouterWarps) {
      const std::int64_t token = first_token_ + row;
      if (token >= num_tokens_) return;
      float* logits = sums_ + row * stride_;
      for (int expert = lane; expert < args_.num_experts; expert += 32) {
        const float value = logit(row, expert);
        logits[expert] = value;
        if (args_.logits != nullptr) args_.logits[token * args_.num_experts + expert] = value;
      }
      __syncwarp();
      RouterChoice choice(args_, {logits, scores});
      choice.route(args_.topk_ids + token * args_.top_k, args_.topk_weights + token * args_.top_k);
    }
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
  const char* tokens_[kTokenFetches];  // rows of x this thread fetches, null where there is none
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
