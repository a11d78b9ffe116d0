#include "cuda/kernel.cuh"
#include "cuda/kernel_table.hpp"

namespace flashmoe::cuda_backend {

KernelEntry kernel_entry_bf16() {
  return {.function = reinterpret_cast<const void*>(&moe_kernel<DType::bf16>),
          .shared_bytes = sizeof(BlockMemory),
          .threads = kBlockThreads,
          .service_warps = kServiceWarps,
          .fewest_blocks = 1,
          .trace_rows = kTraceRows};
}

}  // namespace flashmoe::cuda_backend
