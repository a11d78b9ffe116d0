#include "cuda/hopper/router_kernel.cuh"
#include "cuda/hopper/router_launch.hpp"

namespace flashmoe::cuda_backend::hopper {

RouterKernel router_kernel_fp16(int rows) { return router_kernel_of<DType::fp16>(rows); }

}  // namespace flashmoe::cuda_backend::hopper
