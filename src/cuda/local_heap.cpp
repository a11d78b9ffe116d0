#include "cuda/local_heap.hpp"

#include <algorithm>
#include <utility>

#include "cuda/check.hpp"

namespace flashmoe::cuda_backend {

namespace {

void require_peer_access(const std::vector<int>& devices, const fabric::AskPeerLink& ask) {
  std::vector<fabric::PeerLinks> links;
  for (const int device : devices) links.push_back(fabric::ask_peer_links(device, devices, ask));
  fabric::require_peer_links(devices, links);
}

void enable_peer_access(const std::vector<int>& devices) {
  for (const int device : devices) {
    const DeviceGuard guard(device);
    for (const int peer : devices) {
      if (peer == device) continue;
      const cudaError_t result = cudaDeviceEnablePeerAccess(peer, 0);
      if (result == cudaErrorPeerAccessAlreadyEnabled) {
        cudaGetLastError();
      } else {
        check(result, "cudaDeviceEnablePeerAccess");
      }
    }
  }
}

}  // namespace

LocalHeap::LocalHeap(const Geometry& geometry, std::vector<int> devices, const fabric::AskPeerLink& ask)
    : DeviceHeap(geometry), devices_(std::move(devices)) {
  generation_ = next_generation();
  require_peer_access(devices_, ask);
  enable_peer_access(devices_);
  for (const int device : devices_) {
    memory_.emplace_back(device, layout_.total_bytes);
    bases_.push_back(memory_.back().as<char>());
  }
}

int LocalHeap::num_ranks_beside(int rank) const {
  return static_cast<int>(std::count(devices_.begin(), devices_.end(), device(rank)));
}

}  // namespace flashmoe::cuda_backend
