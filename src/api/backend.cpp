#include "api/backend.hpp"

#include "api/cpu_backend.hpp"
#ifdef FLASHMOE_HAS_CUDA
#include "cuda/cuda_backend.hpp"
#endif
#include "flashmoe/error.hpp"

namespace flashmoe {

void require_backend(BackendKind backend) {
  if (backend == BackendKind::cpu) return;
#ifdef FLASHMOE_HAS_CUDA
  require_cuda_device();
#else
  throw CudaError("backend (cuda) needs a build with CUDA, and this one has the CPU backend alone: build with "
                  "FLASHMOE_CUDA=ON, or use backend cpu");
#endif
}

std::unique_ptr<Backend> make_backend(const GroupOptions& options, [[maybe_unused]] std::optional<int> device) {
  require_backend(options.backend);
#ifdef FLASHMOE_HAS_CUDA
  if (options.backend == BackendKind::cuda) return make_cuda_backend(options, device);
#endif
  return make_cpu_backend(options);
}

}  // namespace flashmoe
