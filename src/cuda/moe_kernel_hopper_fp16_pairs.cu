#include "cuda/hopper/kernel.cuh"
#include "cuda/kernel_table.hpp"

namespace flashmoe::cuda_backend {

const void* pair_kernel_hopper_fp16() { return reinterpret_cast<const void*>(&hopper::moe_kernel<DType::fp16, true>); }

}  // namespace flashmoe::cuda_backend
