#include "api/host_router.hpp"

#include "api/checks.hpp"
#ifdef FLASHMOE_HAS_CUDA
#include "cuda/cuda_router.hpp"
#endif

namespace flashmoe {

void route_from_host(const RouterConfig& config, const RouterParameters& parameters, const RouterPlace& place,
                     DType dtype, ConstRows x, std::int32_t* topk_ids, float* topk_weights) {
  check_backend(place.backend);
  require_backend(place.backend);
#ifdef FLASHMOE_HAS_CUDA
  if (place.backend == BackendKind::cuda) {
    return route_on_gpu(config, parameters, place.device, dtype, x, topk_ids, topk_weights);
  }
#endif
  Router(config, parameters).route(dtype, x, topk_ids, topk_weights);
}

}  // namespace flashmoe
