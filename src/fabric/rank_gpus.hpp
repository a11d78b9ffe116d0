// What the GPUs of a group's ranks must be to each other.
#pragma once

#include <array>
#include <span>
#include <string_view>

namespace flashmoe::fabric {

/// What tells a GPU from all others, whatever number a process knows it by.
using GpuUuid = std::array<char, 16>;

/// The GPU of a rank that is a process of its own.
struct RankGpu {
  GpuUuid uuid;
  int device;  // by that process's numbering
};

/// Throws FabricError, naming the ranks and the GPU, where two ranks have chosen one; gpus[rank]. Kernels of two
/// processes do not run at once on one GPU, so they would wait for each other until the deadline; MPS promises no
/// residency either.
void require_own_gpus(std::string_view group_id, std::span<const RankGpu> gpus);

}  // namespace flashmoe::fabric
