// Stages of operands, and mma.sync of one 16 x 8 tile over 32 bytes of k, the same for every dtype: A is 16 rows, B 8
// rows (its columns).
#pragma once

#include <cstdint>

#include "cuda/element.cuh"

namespace flashmoe::cuda_backend {

/// Stage rows are 128 bytes of k, their 16-byte chunks XORed with the row so that ldmatrix meets no bank twice.
inline constexpr int kStageRowBytes = 128;
__device__ inline std::uint32_t swizzled(std::uint32_t row, std::uint32_t chunk) {
  return row * kStageRowBytes + ((chunk ^ (row & 7u)) << 4);
}

/// 16 bytes of one row into a stage, by cp.async; zeros where `source` is null.
__device__ inline void fetch_chunk(std::uint32_t stage, int row, int chunk, const char* source) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                   stage + swizzled(static_cast<std::uint32_t>(row), static_cast<std::uint32_t>(chunk))),
               "l"(source), "r"(source != nullptr ? 16 : 0)
               : "memory");
}

__device__ inline void load_matrices(std::uint32_t (&registers)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(registers[0]), "=r"(registers[1]), "=r"(registers[2]), "=r"(registers[3])
               : "r"(address)
               : "memory");
}

/// Operands of one k-step (32 bytes) as the lanes of a warp hold them.
template <DType dtype>
struct Fragments {
  // 16 rows of A: rows 0-7 and 8-15 of the first 16 bytes, then of the second.
  using A = std::uint32_t[4];
  // 16 rows of B, two tiles: tile t's first 16 bytes in [2t], second in [2t + 1].
  using B = std::uint32_t[4];
  using Accumulator = float;

  __device__ static void load_a(A& a, std::uint32_t stage, std::uint32_t row, std::uint32_t step, std::uint32_t lane) {
    load_matrices(a, stage + swizzled(row + (lane & 15u), 2 * step + (lane >> 4)));
    round(a);
  }
  __device__ static void load_b(B& b, std::uint32_t stage, std::uint32_t row, std::uint32_t step, std::uint32_t lane) {
    load_matrices(b, stage + swizzled(row + (lane & 7u) + ((lane >> 4) << 3), 2 * step + ((lane >> 3) & 1u)));
    round(b);
  }
  __device__ static void multiply(float (&c)[4], const A& a, const B& b, int tile) {
    if constexpr (dtype == DType::bf16) {
      asm volatile(
          "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, "
          "%2, %3};"
          : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[2 * tile]), "r"(b[2 * tile + 1]));
    } else if constexpr (dtype == DType::fp16) {
      asm volatile(
          "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, "
          "%2, %3};"
          : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[2 * tile]), "r"(b[2 * tile + 1]));
    } else {
      asm volatile(
          "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, "
          "%2, %3};"
          : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[2 * tile]), "r"(b[2 * tile + 1]));
    }
  }

 private:
  __device__ static void round(std::uint32_t (&values)[4]) {
    if constexpr (dtype == DType::tf32) {
#pragma unroll
      for (int i = 0; i < 4; ++i) asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(values[i]) : "r"(values[i]));
    }
  }
};

/// fp64: two m8n8k4 a tile. Lane l holds row l / 4, element l % 4 of k.
template <>
struct Fragments<DType::fp64> {
  using A = double[2];  // rows 0-7, 8-15
  using B = double[2];  // tiles 0, 1
  using Accumulator = double;

  __device__ static double load(std::uint32_t stage, std::uint32_t row, std::uint32_t step, std::uint32_t lane) {
    double value;
    const std::uint32_t address =
        stage + swizzled(row + lane / 4, 2 * step + (lane % 4) / 2) + (lane & 1u) * sizeof(double);
    asm volatile("ld.shared.f64 %0, [%1];" : "=d"(value) : "r"(address) : "memory");
    return value;
  }
  __device__ static void load_a(A& a, std::uint32_t stage, std::uint32_t row, std::uint32_t step, std::uint32_t lane) {
    a[0] = load(stage, row, step, lane);
    a[1] = load(stage, row + 8, step, lane);
  }
  __device__ static void load_b(B& b, std::uint32_t stage, std::uint32_t row, std::uint32_t step, std::uint32_t lane) {
    b[0] = load(stage, row, step, lane);
    b[1] = load(stage, row + 8, step, lane);
  }
  __device__ static void multiply(double (&c)[4], const A& a, const B& b, int tile) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
                   : "+d"(c[2 * half]), "+d"(c[2 * half + 1])
                   : "d"(a[half]), "d"(b[tile]));
    }
  }
};

}  // namespace flashmoe::cuda_backend
