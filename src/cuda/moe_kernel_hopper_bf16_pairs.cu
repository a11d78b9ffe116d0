#include "cuda/hopper/kernel.cuh"
#include "cuda/kernel_table.hpp"

namespace flashmoe::cuda_backend {

const void* pair_kernel_hopper_bf16() { return reinterpret_cast<const void*>(&hopper::moe_kernel<DType::bf16, true>); }

}  // namespace flashmoe::cuda_backend
