// CUDA calls that fail become CudaError.
#pragma once

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <source_location>

#include "flashmoe/error.hpp"

namespace flashmoe::cuda_backend {

/// Throws CudaError when `result` is no success: what was called, where, and CUDA's own words.
inline void check(cudaError_t result, const char* what, const std::source_location& where = std::source_location::current()) {
  if (result == cudaSuccess) return;
  cudaGetLastError();  // a failed launch must not fail the next call too
  throw CudaError(fmt::format("{} failed: {} ({}) at {}:{}", what, cudaGetErrorString(result), cudaGetErrorName(result),
                              where.file_name(), where.line()));
}

/// Makes a device current for a scope.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device) {
    check(cudaGetDevice(&previous_), "cudaGetDevice");
    if (device != previous_) check(cudaSetDevice(device), "cudaSetDevice");
  }
  ~DeviceGuard() { cudaSetDevice(previous_); }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int previous_ = 0;
};

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
