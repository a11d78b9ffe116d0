#include "cuda/peer_access.hpp"

#include <cstring>

#include "cuda/check.hpp"

namespace flashmoe::cuda_backend {

fabric::PeerLink ask_driver(int device, int peer) {
  int reachable = 0;
  check(cudaDeviceCanAccessPeer(&reachable, device, peer), "cudaDeviceCanAccessPeer");
  if (reachable == 0) return fabric::PeerLink::none;
  int atomic = 0;
  check(cudaDeviceGetP2PAttribute(&atomic, cudaDevP2PAttrNativeAtomicSupported, device, peer),
        "cudaDeviceGetP2PAttribute");
  return atomic == 0 ? fabric::PeerLink::without_atomics : fabric::PeerLink::full;
}

fabric::GpuUuid uuid_of(int device) {
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  fabric::GpuUuid uuid;
  static_assert(sizeof(uuid) == sizeof(properties.uuid.bytes));
  std::memcpy(uuid.data(), properties.uuid.bytes, sizeof(uuid));
  return uuid;
}

int find_device(const fabric::GpuUuid& uuid) {
  int count = 0;
  check(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
  for (int device = 0; device < count; ++device) {
    if (uuid_of(device) == uuid) return device;
  }
  return -1;
}

}  // namespace flashmoe::cuda_backend
