// Instructions that CUDA has no function for, one wrapper each; Hopper's own are in hopper/ptx.cuh.
#pragma once

#include <cstdint>

namespace flashmoe::cuda_backend {

/// The clock that all multiprocessors of a GPU share.
__device__ inline std::uint64_t now_ns() {
  std::uint64_t time;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(time));
  return time;
}

/// threadIdx.x, asked for again each time: what follows from it does not stay in registers in between.
__device__ inline int fresh_thread_index() {
  int index;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(index));
  return index;
}

/// The thread's lane, asked for again each time, too.
__device__ inline int fresh_lane() {
  int lane;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
}

/// The multiprocessor that the thread runs on.
__device__ inline std::uint32_t multiprocessor() {
  std::uint32_t number;
  asm("mov.u32 %0, %%smid;" : "=r"(number));
  return number;
}

/// 16 bytes straight from and to L2, never from a stale L1 line. A warp's stores of one line are one transaction.
__device__ inline void store_16(void* target, uint4 value) {
  asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(target), "r"(value.x), "r"(value.y),
               "r"(value.z), "r"(value.w)
               : "memory");
}
__device__ inline uint4 load_16(const void* source) {
  uint4 value;
  asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(source)
               : "memory");
  return value;
}

}  // namespace flashmoe::cuda_backend
