// Products of token rows and gate rows for the router: kRows tokens x 128 experts, 128 bytes of k at a time, by 16 warps.
// A product's bits depend on its two rows and the order of k alone, not on kRows or its place in the tile.
#pragma once

#include <cstdint>

#include "cuda/mma.cuh"
#include "cuda/router_variants.hpp"

namespace flashmoe::cuda_backend {

inline constexpr int kRouterColumns = 128;

/// bf16 and fp16, on the tensor cores. 16 rows keep 8 of the 16 warps busy: such tiles wait for memory anyway.
template <DType dtype, int kRows>
class RouterProduct {
  static constexpr int kWarpsAlongRows = kRows >= 64 ? 4 : 1;
  static constexpr int kWarpsAlongColumns = kRows >= 64 ? 4 : 8;
  static constexpr int kWarpRows = kRows / kWarpsAlongRows;
  static constexpr int kWarpColumns = kRouterColumns / kWarpsAlongColumns;
  static constexpr int kRowTiles = kWarpRows / 16;
  static constexpr int kColumnPairs = kWarpColumns / 16;

 public:
  __device__ void clear() {
#pragma unroll
    for (auto& tile : sums_) {
#pragma unroll
      for (float& sum : tile) sum = 0.0f;
    }
  }
  __device__ void add(const RouterProduct& other) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums_[tile][i] = other.sums_[tile][i] + sums_[tile][i];
    }
  }

  __device__ void multiply_stage(std::uint32_t rows, std::uint32_t columns) {
    using F = Fragments<dtype>;
    if (!busy()) return;
    const std::uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (std::uint32_t step = 0; step < 4; ++step) {
      typename F::A a[kRowTiles];
      typename F::B b[kColumnPairs];
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) F::load_a(a[m], rows, first_row() + static_cast<std::uint32_t>(m * 16), step, lane);
#pragma unroll
      for (int n = 0; n < kColumnPairs; ++n) {
        F::load_b(b[n], columns, first_column() + static_cast<std::uint32_t>(n * 16), step, lane);
      }
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
        for (int n = 0; n < 2 * kColumnPairs; ++n) F::multiply(sums_[m * 2 * kColumnPairs + n], a[m], b[n / 2], n % 2);
      }
    }
  }

  /// Calls f(row, column, sum) for every product this thread holds.
  template <class Function>
  __device__ void for_each(const Function& function) const {
    if (!busy()) return;
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int n = 0; n < 2 * kColumnPairs; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int row = static_cast<int>(first_row()) + m * 16 + i / 2 * 8 + lane / 4;
          const int column = static_cast<int>(first_column()) + n * 8 + lane % 4 * 2 + i % 2;
          function(row, column, sums_[m * 2 * kColumnPairs + n][i]);
        }
      }
    }
  }

 private:
  static constexpr int kTiles = kRowTiles * 2 * kColumnPairs;
  __device__ static bool busy() { return threadIdx.x / 32 < kWarpsAlongRows * kWarpsAlongColumns; }
  __device__ static std::uint32_t first_row() { return threadIdx.x / 32 / kWarpsAlongColumns * kWarpRows; }
  __device__ static std::uint32_t first_column() { return threadIdx.x / 32 % kWarpsAlongColumns * kWarpColumns; }

  float sums_[kTiles][4];
};

/// fp32 by fused multiply-add: a warp has kRows / 16 rows, a lane every 32nd column of them.
template <int kRows>
class RouterProduct<DType::fp32, kRows> {
  static constexpr int kWarpRows = kRows / 16;
  static constexpr int kLaneColumns = kRouterColumns / 32;

 public:
  __device__ void clear() {
#pragma unroll
    for (auto& row : sums_) {
#pragma unroll
      for (float& sum : row) sum = 0.0f;
    }
  }
  __device__ void add(const RouterProduct& other) {
#pragma unroll
    for (int row = 0; row < kWarpRows; ++row) {
#pragma unroll
      for (int column = 0; column < kLaneColumns; ++column) {
        sums_[row][column] = other.sums_[row][column] + sums_[row][column];
      }
    }
  }

  __device__ void multiply_stage(std::uint32_t rows, std::uint32_t columns) {
#pragma unroll 2
    for (std::uint32_t chunk = 0; chunk < 8; ++chunk) {
      float4 w[kLaneColumns];
#pragma unroll
      for (int j = 0; j < kLaneColumns; ++j) {
        w[j] = load(columns + swizzled(threadIdx.x % 32 + static_cast<std::uint32_t>(j) * 32, chunk));
      }
#pragma unroll
      for (int i = 0; i < kWarpRows; ++i) {
        const float4 x = load(rows + swizzled(threadIdx.x / 32 * kWarpRows + static_cast<std::uint32_t>(i), chunk));
#pragma unroll
        for (int j = 0; j < kLaneColumns; ++j) {
          float sum = sums_[i][j];
          sum = fmaf(x.x, w[j].x, sum);
          sum = fmaf(x.y, w[j].y, sum);
          sum = fmaf(x.z, w[j].z, sum);
          sums_[i][j] = fmaf(x.w, w[j].w, sum);
        }
      }
    }
  }

  template <class Function>
  __device__ void for_each(const Function& function) const {
#pragma unroll
    for (int i = 0; i < kWarpRows; ++i) {
#pragma unroll
      for (int j = 0; j < kLaneColumns; ++j) {
        function(static_cast<int>(threadIdx.x / 32) * kWarpRows + i, static_cast<int>(threadIdx.x % 32) + j * 32,
                 sums_[i][j]);
      }
    }
  }

 private:
  __device__ static float4 load(std::uint32_t address) {
    float4 value;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
                 : "r"(address)
                 : "memory");
    return value;
  }

  float sums_[kWarpRows][kLaneColumns];
};

}  // namespace flashmoe::cuda_backend
