#include <cuda_runtime_api.h>

#include "cuda/hold.hpp"
#include "cuda/instructions.cuh"

namespace flashmoe::cuda_backend {

namespace {

__global__ void hold(std::uint64_t ns) {
  const std::uint64_t begin = now_ns();
  while (now_ns() - begin < ns) __nanosleep(200);
}

}  // namespace

cudaError_t launch_hold(std::uint64_t ns, cudaStream_t stream) {
  hold<<<1, 1, 0, stream>>>(ns);
  return cudaGetLastError();
}

}  // namespace flashmoe::cuda_backend
