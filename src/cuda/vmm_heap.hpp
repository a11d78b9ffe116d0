// The symmetric heaps of ranks that are processes of their own, one GPU each, on one machine.
#pragma once

#include <memory>
#include <vector>

#include "cuda/device_heap.hpp"
#include "cuda/peer_access.hpp"
#include "cuda/vmm_memory.hpp"
#include "fabric/bootstrap.hpp"
#include "fabric/rank_gpus.hpp"

namespace flashmoe::cuda_backend {

/// Every rank makes its heap on its own GPU and maps those of all others.
class VmmHeap final : public DeviceHeap {
 public:
  /// Collective: returns, on all ranks or none, when every heap is zeroed and mapped by everybody. `meeting`: all ranks
  /// of the geometry, for this heap alone. What one rank cannot do is told to all.
  /// The ranks' GPUs are as fabric::require_own_gpus() wants them.
  /// Throws CudaError (memory, driver) and FabricError: ranks with other geometries, GPUs as
  /// fabric::require_peer_links(), which goes by what `ask` says to each rank, and what Bootstrap throws.
  VmmHeap(const Geometry& geometry, int device, std::unique_ptr<fabric::Bootstrap> meeting,
          const fabric::AskPeerLink& ask = ask_driver);

  /// Waits for this process's kernels, then up to kLeaveSeconds for the other ranks to go too or to have died. Whoever
  /// stays longer keeps the memory that it maps.
  ~VmmHeap() override;
  static constexpr double kLeaveSeconds = 2.0;

  int rank() const { return meeting_->rank(); }
  int device(int rank) const override;
  int num_ranks_beside(int) const override { return 1; }

 private:
  /// What the ranks tell each other before they share anything.
  struct Card {
    fabric::RankGpu gpu;
    std::uint64_t heap_bytes;   // of the layout
    std::uint64_t mapped_bytes;
    std::uint64_t generation;   // that of rank 0 counts
  };
  void compare(const std::vector<Card>& cards) const;
  void require_peer_access(const std::vector<Card>& cards, const fabric::AskPeerLink& ask);
  void share(const std::vector<Card>& cards);

  int device_;
  std::unique_ptr<fabric::Bootstrap> meeting_;
  std::vector<VmmMemory> memory_;  // [num_ranks]
};

}  // namespace flashmoe::cuda_backend
