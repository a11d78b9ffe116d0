// One rank's tensors in the memory of its GPU.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/memory.hpp"
#include "support/batch.hpp"
#include "support/local_weights.hpp"

namespace flashmoe::test {

inline cuda_backend::DeviceMemory put(int device, const void* data, std::size_t bytes) {
  cuda_backend::DeviceMemory memory(device, bytes);
  const cuda_backend::DeviceGuard guard(device);
  if (bytes > 0) cuda_backend::check(cudaMemcpy(memory.as(), data, bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
  return memory;
}

struct UploadedBatch {
  cuda_backend::DeviceMemory x, y, ids, weights;

  UploadedBatch() = default;
  UploadedBatch(int device, const Batch& batch)
      : x(put(device, batch.x.data(), batch.x.size())),
        y(put(device, batch.y.data(), batch.y.size())),
        ids(put(device, batch.topk_ids.data(), batch.topk_ids.size() * 4)),
        weights(put(device, batch.topk_weights.data(), batch.topk_weights.size() * 4)) {}
};

/// The experts of one rank.
class UploadedWeights {
 public:
  UploadedWeights(int device, const Problem& problem, const ExpertSource& experts, int rank) {
    const LocalWeights local(problem, experts, rank);
    const auto count = static_cast<std::size_t>(problem.num_local_experts());
    const auto hidden = static_cast<std::size_t>(problem.hidden);
    const auto columns = static_cast<std::size_t>(problem.up_columns());
    const std::size_t element = dtype_bytes(problem.dtype);
    up_ = put(device, local.view().up, count * columns * hidden * element);
    down_ = put(device, local.view().down, count * hidden * static_cast<std::size_t>(problem.intermediate) * element);
    if (problem.up_bias) up_bias_ = put(device, local.view().up_bias, count * columns * sizeof(float));
    if (problem.down_bias) down_bias_ = put(device, local.view().down_bias, count * hidden * sizeof(float));
  }

  WeightsView view() const { return {up_.as(), down_.as(), up_bias_.as<float>(), down_bias_.as<float>()}; }

 private:
  cuda_backend::DeviceMemory up_, down_, up_bias_, down_bias_;
};

}  // namespace flashmoe::test
