#include "cuda/kernel.cuh"
#include "cuda/kernel_table.hpp"

namespace flashmoe::cuda_backend {

KernelEntry kernel_entry_tf32() {
  return {reinterpret_cast<const void*>(&moe_kernel<DType::tf32>), sizeof(BlockMemory)};
}

}  // namespace flashmoe::cuda_backend
