// Memory and streams that a caller hands in.
#pragma once

#include <fmt/format.h>

#include "cuda/check.hpp"
#include "flashmoe/error.hpp"

namespace flashmoe::cuda_backend {

/// Throws InvalidArgument unless `pointer` is null or memory of GPU `device`.
inline void require_gpu_memory(const char* name, const void* pointer, int device) {
  if (pointer == nullptr) return;
  cudaPointerAttributes attributes{};
  check(cudaPointerGetAttributes(&attributes, pointer), "cudaPointerGetAttributes");
  if (attributes.type == cudaMemoryTypeDevice && attributes.device == device) return;
  throw InvalidArgument(fmt::format(
      "{} must lie in memory of GPU {} for backend cuda, got {}: copy it to where it is used first", name, device,
      attributes.type == cudaMemoryTypeDevice ? fmt::format("GPU {}", attributes.device) : "host memory"));
}

/// Lets this thread allocate, load kernels and look at memory while a stream is being captured; what is launched on
/// that stream becomes part of its graph all the same.
class RelaxedCapture {
 public:
  RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

}  // namespace flashmoe::cuda_backend
