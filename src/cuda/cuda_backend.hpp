// The CUDA backend behind the public interfaces: groups of one process, rank r on GPU r % number of GPUs.
#pragma once

#include <memory>

#include "api/backend.hpp"

namespace flashmoe {

/// Throws CudaError, one sentence, when there is no GPU of compute capability 8.0 or newer with a fit driver.
void require_cuda_device();

std::unique_ptr<Backend> make_cuda_backend(const GroupOptions& options);

}  // namespace flashmoe
