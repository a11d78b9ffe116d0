// A router on one backend.
#pragma once

#include <cstdint>
#include <memory>

#include "flashmoe/router.hpp"

namespace flashmoe {

/// Router's calls, whose pointers and counts have been checked by themselves.
class RouterEngine {
 public:
  virtual ~RouterEngine() = default;
  virtual void route(DType dtype, ConstRows x, std::int32_t* topk_ids, float* topk_weights, void* stream) const = 0;
  virtual void route_logits(std::int64_t num_tokens, const float* logits, std::int32_t* topk_ids, float* topk_weights,
                            void* stream) const = 0;
};

/// `config` and `parameters` have been checked, but for what their backend cannot do.
std::unique_ptr<RouterEngine> make_cpu_router(const RouterConfig& config, const RouterParameters& parameters);
std::unique_ptr<RouterEngine> make_router_engine(const RouterConfig& config, const RouterParameters& parameters,
                                                 const RouterPlace& place);

}  // namespace flashmoe
