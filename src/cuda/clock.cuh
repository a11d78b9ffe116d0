// The GPU's clock that all its multiprocessors share.
#pragma once

#include <cstdint>

namespace flashmoe::cuda_backend {

__device__ inline std::uint64_t now_ns() {
  std::uint64_t time;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(time));
  return time;
}

}  // namespace flashmoe::cuda_backend
