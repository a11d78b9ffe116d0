// Device memory that several processes map: made by one, handed on as a file descriptor, freed when the last has gone.
#pragma once

#include <cstddef>

#include "fabric/unique_fd.hpp"

namespace flashmoe::cuda_backend {

/// Memory of a GPU, pinned there, mapped for reading and writing by one GPU of this process. Unmapped when it goes; the
/// memory itself stays as long as any process maps it or has a descriptor of it, so that whoever still stores to it does
/// no harm.
class VmmMemory {
 public:
  /// Bytes rounded up to what a mapping on `device` may have. Throws CudaError when the GPU cannot share memory between
  /// processes.
  static std::size_t rounded_bytes(int device, std::size_t bytes);

  /// New memory on `device`, its contents undefined. `bytes`: a result of rounded_bytes(). `shared` becomes a descriptor
  /// of it. Throws CudaError when there is not enough.
  static VmmMemory create(int device, std::size_t bytes, fabric::UniqueFd& shared);

  /// Memory that another process created with as many bytes, mapped for `device`. Throws CudaError when the GPUs cannot
  /// reach each other.
  static VmmMemory import(int device, std::size_t bytes, const fabric::UniqueFd& shared);

  VmmMemory() = default;
  ~VmmMemory();
  VmmMemory(VmmMemory&& other) noexcept;
  VmmMemory& operator=(VmmMemory&& other) noexcept;

  char* data() const { return data_; }

 private:
  class Handle;
  static VmmMemory map(int device, std::size_t bytes, const Handle& handle);

  char* data_ = nullptr;
  std::size_t bytes_ = 0;
  bool mapped_ = false;
};

}  // namespace flashmoe::cuda_backend
