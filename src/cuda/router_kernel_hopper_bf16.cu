#include "cuda/hopper/router_kernel.cuh"
#include "cuda/hopper/router_launch.hpp"

namespace flashmoe::cuda_backend::hopper {

RouterKernel router_kernel_bf16(int rows) { return router_kernel_of<DType::bf16>(rows); }

}  // namespace flashmoe::cuda_backend::hopper
