// The CUDA backend for the typed suites: ranks spread over all GPUs there are, several a GPU where these are fewer.
// CUDA_VISIBLE_DEVICES=0 puts all of them on one.
#pragma once

#include <string>
#include <vector>

#include "support/cuda_world.hpp"

namespace flashmoe::test {

struct CudaBackend {
  using World = CudaWorld;
  static std::vector<DType> dtypes() { return {DType::bf16, DType::fp16, DType::tf32, DType::fp64}; }
  static std::string why_not() {
    int count = 0;
    const cudaError_t result = cudaGetDeviceCount(&count);
    if (result == cudaSuccess && count > 0) return {};
    return std::string("no usable GPU: ") + cudaGetErrorString(result);
  }
};

}  // namespace flashmoe::test
