// The router on a GPU.
#pragma once

#include <cstdint>
#include <memory>

#include "api/router_engine.hpp"

namespace flashmoe {

/// Uses the parameters where they lie, on GPU `device`. Throws as Router's constructor.
std::unique_ptr<RouterEngine> make_cuda_router(const RouterConfig& config, const RouterParameters& parameters,
                                               int device);

/// route_from_host() of api/host_router.hpp on GPU `device`.
void route_on_gpu(const RouterConfig& config, const RouterParameters& parameters, int device, DType dtype, ConstRows x,
                  std::int32_t* topk_ids, float* topk_weights);

}  // namespace flashmoe
