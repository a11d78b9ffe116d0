// Keeping a stream busy for a while, so that what is launched on it next begins late.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace flashmoe::cuda_backend {

/// A kernel of one thread that leaves `ns` after it began.
cudaError_t launch_hold(std::uint64_t ns, cudaStream_t stream);

}  // namespace flashmoe::cuda_backend
