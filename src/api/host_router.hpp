// Routes of a batch in host memory, on either backend.
#pragma once

#include <cstdint>

#include "flashmoe/router.hpp"

namespace flashmoe {

/// Router::route() with the parameters, x and the results in host memory; blocks. On backend cuda they travel, and x
/// and weight go in x's dtype where that keeps every bit of the weight, else both as fp32. `parameters.weight_dtype` is
/// fp32. Throws as Router.
void route_from_host(const RouterConfig& config, const RouterParameters& parameters, const RouterPlace& place,
                     DType dtype, ConstRows x, std::int32_t* topk_ids, float* topk_weights);

}  // namespace flashmoe
