// What the protocol asks of two GPUs that share heaps.
#pragma once

namespace flashmoe::cuda_backend {

/// Throws FabricError unless GPU `device` can load and store the memory of GPU `peer` and add to it atomically, as signals
/// do. By this process's numbering; a GPU and itself are fine.
void require_peer_access(int device, int peer);

/// The GPU of this process with that UUID (16 bytes), or -1: this process does not see it.
int find_device(const char* uuid);

}  // namespace flashmoe::cuda_backend
