// The router on a GPU.
#pragma once

#include <memory>

#include "api/router_engine.hpp"

namespace flashmoe {

/// Uses the parameters where they lie, on GPU `device`. Throws as Router's constructor.
std::unique_ptr<RouterEngine> make_cuda_router(const RouterConfig& config, const RouterParameters& parameters, int device);

}  // namespace flashmoe
