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
    if (device == previous_) return;
    check(cudaSetDevice(device), "cudaSetDevice");
    changed_ = true;
  }
  ~DeviceGuard() {
    if (changed_) cudaSetDevice(previous_);
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int previous_ = 0;
  bool changed_ = false;
};

/// The same for destructors, which throw nothing: errors of the device are raised by the calls that meet them.
class ReleaseGuard {
 public:
  explicit ReleaseGuard(int device) noexcept {
    const cudaError_t result = cudaGetDevice(&previous_);
    forked_ = result == cudaErrorInitializationError;
    changed_ = result == cudaSuccess && device != previous_;
    if (changed_) cudaSetDevice(device);
  }
  ~ReleaseGuard() {
    if (changed_) cudaSetDevice(previous_);
  }
  ReleaseGuard(const ReleaseGuard&) = delete;
  ReleaseGuard& operator=(const ReleaseGuard&) = delete;

  /// In the child of a fork CUDA does not work, and what was made before is the parent's: nothing is to be released.
  bool forked() const { return forked_; }

 private:
  int previous_ = 0;
  bool forked_ = false;
  bool changed_ = false;
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
