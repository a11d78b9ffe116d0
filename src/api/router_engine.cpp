#include "api/router_engine.hpp"

#ifdef FLASHMOE_HAS_CUDA
#include "cuda/cuda_backend.hpp"
#include "cuda/cuda_router.hpp"
#endif

namespace flashmoe {

std::unique_ptr<RouterEngine> make_router_engine(const RouterConfig& config, const RouterParameters& parameters,
                                                 const RouterPlace& place) {
  require_backend(place.backend);
#ifdef FLASHMOE_HAS_CUDA
  if (place.backend == BackendKind::cuda) {
    require_device(place.device);
    return make_cuda_router(config, parameters, place.device);
  }
#endif
  return make_cpu_router(config, parameters);
}

}  // namespace flashmoe
