#include "api/backend.hpp"

#include "api/cpu_backend.hpp"
#include "flashmoe/error.hpp"

namespace flashmoe {

void require_backend(BackendKind backend) {
  if (backend == BackendKind::cuda) {
    throw CudaError("backend (cuda) needs a build with CUDA, and this one has the CPU backend alone: build with "
                    "FLASHMOE_CUDA=ON, or use backend cpu");
  }
}

std::unique_ptr<Backend> make_backend(const GroupOptions& options) {
  require_backend(options.backend);
  return make_cpu_backend(options);
}

}  // namespace flashmoe
