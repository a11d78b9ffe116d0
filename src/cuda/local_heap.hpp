// The symmetric heaps of ranks that all live in this process.
#pragma once

#include <vector>

#include "cuda/device_heap.hpp"
#include "cuda/memory.hpp"
#include "cuda/peer_access.hpp"

namespace flashmoe::cuda_backend {

/// One heap a rank, on one or several GPUs that reach each other.
class LocalHeap final : public DeviceHeap {
 public:
  /// devices[r]: the GPU of rank r; several ranks may share one. Throws FabricError as fabric::require_peer_links(),
  /// which goes by what `ask` says, before it touches a GPU.
  LocalHeap(const Geometry& geometry, std::vector<int> devices, const fabric::AskPeerLink& ask = ask_driver);

  int device(int rank) const override { return devices_[static_cast<std::size_t>(rank)]; }
  int num_ranks_beside(int rank) const override;

 private:
  std::vector<int> devices_;
  std::vector<DeviceMemory> memory_;
};

}  // namespace flashmoe::cuda_backend
