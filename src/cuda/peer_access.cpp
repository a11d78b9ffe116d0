#include "cuda/peer_access.hpp"

#include <fmt/format.h>

#include <cstring>

#include "cuda/check.hpp"
#include "flashmoe/error.hpp"

namespace flashmoe::cuda_backend {

void require_peer_access(int device, int peer) {
  if (device == peer) return;
  int reachable = 0;
  check(cudaDeviceCanAccessPeer(&reachable, device, peer), "cudaDeviceCanAccessPeer");
  if (reachable == 0) {
    throw FabricError(fmt::format("GPU {} cannot reach the memory of GPU {}: use GPUs joined by NVLink (nvidia-smi topo -m "
                                  "shows which)", device, peer));
  }
  int atomic = 0;
  check(cudaDeviceGetP2PAttribute(&atomic, cudaDevP2PAttrNativeAtomicSupported, device, peer), "cudaDeviceGetP2PAttribute");
  if (atomic == 0) {
    throw FabricError(fmt::format("GPU {} reaches the memory of GPU {}, but cannot add to it atomically: use GPUs joined by "
                                  "NVLink (nvidia-smi topo -m shows which)", device, peer));
  }
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
