// Owned memory of a device, and of the host where a device can write it.
#pragma once

#include <cstddef>
#include <utility>

#include "cuda/check.hpp"

namespace flashmoe::cuda_backend {

/// Zeroed device memory. Freed on its device.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  DeviceMemory(int device, std::size_t bytes) : device_(device), bytes_(bytes) {
    const DeviceGuard guard(device);
    const cudaError_t result = cudaMalloc(&data_, bytes == 0 ? 1 : bytes);
    if (result == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      throw CudaError(fmt::format("device {} has no {} bytes left: use fewer tokens, waves or ranks a GPU", device, bytes));
    }
    check(result, "cudaMalloc");
    // Only this thread's stream: other ranks' kernels may be waiting for this rank.
    check(cudaMemsetAsync(data_, 0, bytes, cudaStreamPerThread), "cudaMemsetAsync");
    check(cudaStreamSynchronize(cudaStreamPerThread), "cudaStreamSynchronize");
  }
  ~DeviceMemory() {
    if (data_ == nullptr) return;
    const ReleaseGuard guard(device_);
    const RelaxedCapture relaxed;
    if (!guard.forked()) cudaFree(data_);
  }
  DeviceMemory(DeviceMemory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), device_(other.device_), bytes_(other.bytes_) {}
  DeviceMemory& operator=(DeviceMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(device_, other.device_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  /// Copies from host memory; kernels on any stream see it afterwards. cudaMemcpy would return before the copy of pageable
  /// memory has arrived, and no stream but the default one waits for it.
  void upload(std::size_t offset, const void* source, std::size_t bytes) {
    const DeviceGuard guard(device_);
    check(cudaMemcpyAsync(as<char>() + offset, source, bytes, cudaMemcpyHostToDevice, cudaStreamPerThread), "cudaMemcpyAsync");
    check(cudaStreamSynchronize(cudaStreamPerThread), "cudaStreamSynchronize");
  }

  template <class T = char>
  T* as() const {
    return static_cast<T*>(data_);
  }
  std::size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  int device_ = 0;
  std::size_t bytes_ = 0;
};

/// An event without timing, of the device that is current when it is made.
class OwnedEvent {
 public:
  OwnedEvent() = default;
  void create() { check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreateWithFlags"); }
  ~OwnedEvent() {
    if (event_ != nullptr) cudaEventDestroy(event_);
  }
  OwnedEvent(const OwnedEvent&) = delete;
  OwnedEvent& operator=(const OwnedEvent&) = delete;
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

/// A stream that waits for no other, of the device that is current when it is made.
class OwnedStream {
 public:
  OwnedStream() = default;
  void create() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags"); }
  ~OwnedStream() {
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }
  OwnedStream(const OwnedStream&) = delete;
  OwnedStream& operator=(const OwnedStream&) = delete;
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

/// One zeroed T in pinned host memory that every device can write.
template <class T>
class PinnedHost {
 public:
  PinnedHost() {
    check(cudaHostAlloc(&data_, sizeof(T), cudaHostAllocPortable | cudaHostAllocMapped), "cudaHostAlloc");
    *static_cast<T*>(data_) = T{};
  }
  ~PinnedHost() {
    const RelaxedCapture relaxed;
    cudaFreeHost(data_);
  }
  PinnedHost(const PinnedHost&) = delete;
  PinnedHost& operator=(const PinnedHost&) = delete;
  T* get() const { return static_cast<T*>(data_); }

 private:
  void* data_ = nullptr;
};

}  // namespace flashmoe::cuda_backend
