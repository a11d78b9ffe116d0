#include "cuda/hopper/kernel.cuh"
#include "cuda/kernel_table.hpp"

namespace flashmoe::cuda_backend {

KernelEntry kernel_entry_hopper_bf16() {
  return {.function = reinterpret_cast<const void*>(&hopper::moe_kernel<DType::bf16, false>),
          .pair_function = pair_kernel_hopper_bf16(),
          .shared_bytes = sizeof(hopper::BlockMemory),
          .threads = hopper::kBlockThreads,
          .service_warps = hopper::kServiceWarps,
          .fewest_blocks = hopper::kFewestBlocks,
          .trace_rows = hopper::kTraceRows};
}

}  // namespace flashmoe::cuda_backend
