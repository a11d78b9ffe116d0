// The CUDA backend behind the public interfaces.
#pragma once

#include <memory>
#include <optional>

#include "api/backend.hpp"

namespace flashmoe {

/// Throws CudaError, one sentence, when there is no GPU of compute capability 8.0 or newer with a fit driver.
void require_cuda_device();

/// Throws CudaError when this process does not see the GPU; there is one.
void require_device(int device);

/// `device`: this process has one rank, on that GPU; none: it has them all, rank r on GPU (options.first_device + r) %
/// number of GPUs. Throws CudaError as require_device().
std::unique_ptr<Backend> make_cuda_backend(const GroupOptions& options, std::optional<int> device);

}  // namespace flashmoe
