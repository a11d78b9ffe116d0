// wgmma.mma_async m64nNk16: the product a warpgroup adds to its accumulators, operands in 128-byte-swizzled stages. Rows are
// tokens and columns weights in prefill tiles, the other way round in decode tiles and in the router.
#pragma once

#include <cstdint>

#include "flashmoe/types.hpp"

namespace flashmoe::cuda_backend::hopper {

/// A thread's accumulators of 64 rows x `columns`. With warp = thread / 32 % 4 and lane of the warpgroup, element
/// 4 * j + 2 * h + i is row 16 * warp + 8 * h + lane / 4, column 8 * j + lane % 4 * 2 + i.
template <int columns>
using Accumulators = float[columns / 2];

/// Descriptor of an operand whose rows are 128 bytes of k, swizzled, 8 rows every 1024 bytes (PTX ISA, matrix
/// descriptor). `address`: shared, of the first row; a multiple of 1024. Adding 2 moves on by 16 elements of k.
__device__ inline std::uint64_t operand(std::uint32_t address) {
  constexpr std::uint64_t kStride = 1024 >> 4;
  constexpr std::uint64_t kSwizzle128 = 1;
  return ((address & 0x3ffffu) >> 4) | (std::uint64_t{1} << 16) | (kStride << 32) | (kSwizzle128 << 62);
}

/// `value`, the same in all threads of the warp, as ptxas can know it: descriptors that follow from it stay in uniform registers,
/// where wgmma wants them. Else they are moved there, by four instructions before every wgmma. All threads of the warp.
__device__ inline std::uint32_t uniform(std::uint32_t value) { return __shfl_sync(0xffffffffu, value, 0); }

/// Accumulators written by other instructions are safe for wgmma after this.
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/// Waits until at most `pending` of the committed groups still run.
template <int pending>
__device__ inline void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

#define FLASHMOE_ACCUMULATORS_4(i) "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3])
#define FLASHMOE_ACCUMULATORS_8(i) FLASHMOE_ACCUMULATORS_4(i), FLASHMOE_ACCUMULATORS_4((i) + 4)
#define FLASHMOE_ACCUMULATORS_16(i) FLASHMOE_ACCUMULATORS_8(i), FLASHMOE_ACCUMULATORS_8((i) + 8)
#define FLASHMOE_ACCUMULATORS_32(i) FLASHMOE_ACCUMULATORS_16(i), FLASHMOE_ACCUMULATORS_16((i) + 16)
#define FLASHMOE_ACCUMULATORS_64(i) FLASHMOE_ACCUMULATORS_32(i), FLASHMOE_ACCUMULATORS_32((i) + 32)
#define FLASHMOE_ACCUMULATORS_128(i) FLASHMOE_ACCUMULATORS_64(i), FLASHMOE_ACCUMULATORS_64((i) + 64)
#define FLASHMOE_ACCUMULATORS_40(i) FLASHMOE_ACCUMULATORS_32(i), FLASHMOE_ACCUMULATORS_8((i) + 32)
#define FLASHMOE_ACCUMULATORS_48(i) FLASHMOE_ACCUMULATORS_32(i), FLASHMOE_ACCUMULATORS_16((i) + 32)
#define FLASHMOE_ACCUMULATORS_72(i) FLASHMOE_ACCUMULATORS_64(i), FLASHMOE_ACCUMULATORS_8((i) + 64)
#define FLASHMOE_NAMES_4 "%0, %1, %2, %3"
#define FLASHMOE_NAMES_8 FLASHMOE_NAMES_4 ", %4, %5, %6, %7"
#define FLASHMOE_NAMES_16 FLASHMOE_NAMES_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define FLASHMOE_NAMES_32 \
  FLASHMOE_NAMES_16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define FLASHMOE_NAMES_64                                                                                    \
  FLASHMOE_NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, " \
                    "%49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define FLASHMOE_NAMES_40 FLASHMOE_NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define FLASHMOE_NAMES_48 \
  FLASHMOE_NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define FLASHMOE_NAMES_72 FLASHMOE_NAMES_64 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define FLASHMOE_NAMES_128 \
  FLASHMOE_NAMES_64 ", "  \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, " \
  "%83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, " \
  "%102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, " \
  "%118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
/// `a_name`, `b_name`: of the operands behind `count` accumulators.
#define FLASHMOE_WGMMA(type, columns, count, a_name, b_name)                                                    \
  asm volatile("wgmma.mma_async.sync.aligned.m64n" columns "k16.f32." type "." type " {" FLASHMOE_NAMES_##count \
               "}, " a_name ", " b_name ", 1, 1, 1, 0, 0;"                                                      \
               : FLASHMOE_ACCUMULATORS_##count(0)                                                               \
               : "l"(a), "l"(b))
#define FLASHMOE_WGMMA_OF(type)                        \
  if constexpr (columns == 8) {                        \
    FLASHMOE_WGMMA(type, "8", 4, "%4", "%5");          \
  } else if constexpr (columns == 16) {                \
    FLASHMOE_WGMMA(type, "16", 8, "%8", "%9");         \
  } else if constexpr (columns == 32) {                \
    FLASHMOE_WGMMA(type, "32", 16, "%16", "%17");      \
  } else if constexpr (columns == 64) {                \
    FLASHMOE_WGMMA(type, "64", 32, "%32", "%33");      \
  } else if constexpr (columns == 80) {                \
    FLASHMOE_WGMMA(type, "80", 40, "%40", "%41");      \
  } else if constexpr (columns == 96) {                \
    FLASHMOE_WGMMA(type, "96", 48, "%48", "%49");      \
  } else if constexpr (columns == 144) {               \
    FLASHMOE_WGMMA(type, "144", 72, "%72", "%73");     \
  } else if constexpr (columns == 128) {               \
    FLASHMOE_WGMMA(type, "128", 64, "%64", "%65");     \
  } else {                                             \
    FLASHMOE_WGMMA(type, "256", 128, "%128", "%129");  \
  }

/// d += a x b over 16 elements of k: 64 rows of a, `columns` rows of b. Asynchronous: see wgmma_commit() and wgmma_wait().
/// For 256 columns ptxas wants 154 registers at launch, so a block has at most 384 threads. (Two of 128 instead read
/// shared memory more than it can give beside the loads: a layer of 1,808 us took 2,081.)
template <DType dtype, int columns>
__device__ inline void wgmma(Accumulators<columns>& d, std::uint64_t a, std::uint64_t b) {
  static_assert(dtype == DType::bf16 || dtype == DType::fp16);
  static_assert(columns == 8 || columns == 16 || columns == 32 || columns == 64 || columns == 80 || columns == 96 ||
                columns == 128 || columns == 144 || columns == 256);
  if constexpr (dtype == DType::bf16) {
    FLASHMOE_WGMMA_OF("bf16")
  } else {
    FLASHMOE_WGMMA_OF("f16")
  }
}

#undef FLASHMOE_WGMMA_OF
#undef FLASHMOE_WGMMA
#undef FLASHMOE_NAMES_128
#undef FLASHMOE_NAMES_72
#undef FLASHMOE_NAMES_48
#undef FLASHMOE_NAMES_40
#undef FLASHMOE_NAMES_64
#undef FLASHMOE_NAMES_32
#undef FLASHMOE_NAMES_16
#undef FLASHMOE_NAMES_8
#undef FLASHMOE_NAMES_4
#undef FLASHMOE_ACCUMULATORS_128
#undef FLASHMOE_ACCUMULATORS_72
#undef FLASHMOE_ACCUMULATORS_48
#undef FLASHMOE_ACCUMULATORS_40
#undef FLASHMOE_ACCUMULATORS_64
#undef FLASHMOE_ACCUMULATORS_32
#undef FLASHMOE_ACCUMULATORS_16
#undef FLASHMOE_ACCUMULATORS_8
#undef FLASHMOE_ACCUMULATORS_4

}  // namespace flashmoe::cuda_backend::hopper
