#include "cuda/device_heap.hpp"

#include <atomic>

#include "cuda/check.hpp"

namespace flashmoe::cuda_backend {

void DeviceHeap::poison(int rank, int byte) {
  const DeviceGuard guard(device(rank));
  for (const HeapRegion region : {HeapRegion::tokens, HeapRegion::results}) {
    check(cudaMemset(base(rank) + layout_.offset_of(region), byte, layout_.region_bytes[static_cast<int>(region)]),
          "cudaMemset");
  }
}

std::uint16_t next_generation() {
  static std::atomic<std::uint32_t> count{0};
  return static_cast<std::uint16_t>(count.fetch_add(1) % 0xffffu + 1);
}

}  // namespace flashmoe::cuda_backend
