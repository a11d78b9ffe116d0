// The Hopper router as host code sees it.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstddef>

#include "cuda/router_args.hpp"

namespace flashmoe::cuda_backend::hopper {

/// Kernel parameter, behind RouterArgs and RouterGrid.
struct RouterMaps {
  CUtensorMap gate;  // [num_experts][hidden], boxes of gate_box() rows
  CUtensorMap x;     // [max_tokens][hidden], boxes of RouterGrid::rows rows
};

struct RouterKernel {
  const void* function;
  std::size_t shared_bytes;  ///< of a block, dynamic
};

/// `rows`: of RouterGrid.
RouterKernel router_kernel_bf16(int rows);
RouterKernel router_kernel_fp16(int rows);

/// As flashmoe::cuda_backend::launch_router() for x and gate, bf16 or fp16. False, and nothing launched, where the current
/// device is no Hopper GPU or cannot place the clusters.
bool launch_router(DType dtype, const RouterArgs& args, cudaStream_t stream);

}  // namespace flashmoe::cuda_backend::hopper
