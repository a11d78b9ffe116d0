// What the driver says of this process's GPUs.
#pragma once

#include "fabric/rank_gpus.hpp"

namespace flashmoe::cuda_backend {

/// The link of two GPUs, by this process's numbering, as the driver knows it.
fabric::PeerLink ask_driver(int device, int peer);

fabric::GpuUuid uuid_of(int device);

/// The GPU of this process with that UUID, or -1: this process does not see it.
int find_device(const fabric::GpuUuid& uuid);

}  // namespace flashmoe::cuda_backend
