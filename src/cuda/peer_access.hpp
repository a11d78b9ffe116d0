// What the protocol asks of two GPUs that share heaps.
#pragma once

#include "fabric/rank_gpus.hpp"

namespace flashmoe::cuda_backend {

/// Throws FabricError unless GPU `device` can load and store the memory of GPU `peer` and add to it atomically, as signals
/// do. By this process's numbering; a GPU and itself are fine.
void require_peer_access(int device, int peer);

fabric::GpuUuid uuid_of(int device);

/// The GPU of this process with that UUID, or -1: this process does not see it.
int find_device(const fabric::GpuUuid& uuid);

}  // namespace flashmoe::cuda_backend
