// wgmma.mma_async m64nNk16 with weights as the 64 rows and 16 to 128 tokens as the columns: what a decode tile and the
// router multiply.
#pragma once

#include <cstdint>

#include "cuda/hopper/wgmma.cuh"
#include "flashmoe/types.hpp"

namespace flashmoe::cuda_backend::hopper {

/// A thread's accumulators of 64 rows of weights x `tokens`.
/// With warp = thread / 32 % 4 and lane of the warpgroup, element 4 * j + 2 * h + i is weight row
/// 16 * warp + 8 * h + lane / 4, token 8 * j + lane % 4 * 2 + i.
template <int tokens>
using TokenAccumulators = float[tokens / 2];

#define FLASHMOE_ACCUMULATORS_4(i) "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3])
#define FLASHMOE_ACCUMULATORS_8(i) FLASHMOE_ACCUMULATORS_4(i), FLASHMOE_ACCUMULATORS_4((i) + 4)
#define FLASHMOE_ACCUMULATORS_16(i) FLASHMOE_ACCUMULATORS_8(i), FLASHMOE_ACCUMULATORS_8((i) + 8)
#define FLASHMOE_ACCUMULATORS_32(i) FLASHMOE_ACCUMULATORS_16(i), FLASHMOE_ACCUMULATORS_16((i) + 16)
#define FLASHMOE_ACCUMULATORS_64(i) FLASHMOE_ACCUMULATORS_32(i), FLASHMOE_ACCUMULATORS_32((i) + 32)
#define FLASHMOE_NAMES_4 "%0, %1, %2, %3"
#define FLASHMOE_NAMES_8 FLASHMOE_NAMES_4 ", %4, %5, %6, %7"
#define FLASHMOE_NAMES_16 FLASHMOE_NAMES_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define FLASHMOE_NAMES_32 \
  FLASHMOE_NAMES_16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define FLASHMOE_NAMES_64                                                                                    \
  FLASHMOE_NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, " \
                    "%49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
/// `a_name`, `b_name`: of the operands behind `count` accumulators.
#define FLASHMOE_WGMMA(type, tokens, count, a_name, b_name)                                                    \
  asm volatile("wgmma.mma_async.sync.aligned.m64n" tokens "k16.f32." type "." type " {" FLASHMOE_NAMES_##count \
               "}, " a_name ", " b_name ", 1, 1, 1, 0, 0;"                                                     \
               : FLASHMOE_ACCUMULATORS_##count(0)                                                              \
               : "l"(a), "l"(b))
#define FLASHMOE_WGMMA_TOKENS(type)                \
  if constexpr (tokens == 16) {                    \
    FLASHMOE_WGMMA(type, "16", 8, "%8", "%9");     \
  } else if constexpr (tokens == 32) {             \
    FLASHMOE_WGMMA(type, "32", 16, "%16", "%17");  \
  } else if constexpr (tokens == 64) {             \
    FLASHMOE_WGMMA(type, "64", 32, "%32", "%33");  \
  } else {                                         \
    FLASHMOE_WGMMA(type, "128", 64, "%64", "%65"); \
  }

/// d += weights a x tokens b over 16 elements of k, for 16, 32, 64 or 128 tokens. See wgmma().
template <DType dtype, int tokens>
__device__ inline void wgmma_tokens(TokenAccumulators<tokens>& d, std::uint64_t a, std::uint64_t b) {
  static_assert(dtype == DType::bf16 || dtype == DType::fp16);
  static_assert(tokens == 16 || tokens == 32 || tokens == 64 || tokens == 128);
  if constexpr (dtype == DType::bf16) {
    FLASHMOE_WGMMA_TOKENS("bf16")
  } else {
    FLASHMOE_WGMMA_TOKENS("f16")
  }
}

#undef FLASHMOE_WGMMA_TOKENS
#undef FLASHMOE_WGMMA
#undef FLASHMOE_NAMES_64
#undef FLASHMOE_NAMES_32
#undef FLASHMOE_NAMES_16
#undef FLASHMOE_NAMES_8
#undef FLASHMOE_NAMES_4
#undef FLASHMOE_ACCUMULATORS_64
#undef FLASHMOE_ACCUMULATORS_32
#undef FLASHMOE_ACCUMULATORS_16
#undef FLASHMOE_ACCUMULATORS_8
#undef FLASHMOE_ACCUMULATORS_4

}  // namespace flashmoe::cuda_backend::hopper
