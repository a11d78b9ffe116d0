// The symmetric heaps of a group's ranks as one process sees them; how they came to be mapped is the backend's affair.
#pragma once

#include <cstdint>
#include <vector>

#include "core/heap_layout.hpp"
#include "fabric/launch_streams.hpp"

namespace flashmoe::cuda_backend {

/// Zeroed when the constructor of an implementation returns, on every rank.
class DeviceHeap {
 public:
  virtual ~DeviceHeap() = default;
  DeviceHeap(const DeviceHeap&) = delete;
  DeviceHeap& operator=(const DeviceHeap&) = delete;

  const HeapLayout& layout() const { return layout_; }

  /// Part of every tag in the heaps: the same on all ranks, and not that of an earlier heap.
  std::uint16_t generation() const { return generation_; }

  /// Where GPUs of this process reach a rank's heap. Peers store there; only the rank itself loads.
  char* base(int rank) const { return bases_[static_cast<std::size_t>(rank)]; }

  /// The GPU of a rank of this process, by this process's numbering. Throws InvalidArgument for a rank of another one.
  virtual int device(int rank) const = 0;

  /// Ranks, of any process, whose kernels share the GPU of a rank of this process, itself included.
  virtual int num_ranks_beside(int rank) const = 0;

  fabric::LaunchStreams& launch_streams() { return launch_streams_; }

  /// Fills the payload of a rank of this process (rows and results, not counters and tags) with a byte, for tests.
  void poison(int rank, int byte);

 protected:
  explicit DeviceHeap(const Geometry& geometry)
      : layout_(make_heap_layout(geometry)), launch_streams_(geometry.num_ranks) {}

  HeapLayout layout_;
  std::vector<char*> bases_;  // [num_ranks]
  std::uint16_t generation_ = 0;

 private:
  fabric::LaunchStreams launch_streams_;
};

/// 1..65535 in turn. One rank draws it for all.
std::uint16_t next_generation();

}  // namespace flashmoe::cuda_backend
