#include "cuda/kernel.cuh"
#include "cuda/kernel_table.hpp"

namespace flashmoe::cuda_backend {

KernelEntry kernel_entry_fp64() {
  return {reinterpret_cast<const void*>(&moe_kernel<DType::fp64>), sizeof(BlockMemory)};
}

}  // namespace flashmoe::cuda_backend
