#include "flashmoe/router.hpp"

#include <fmt/format.h>

#include "api/checks.hpp"
#include "api/router_engine.hpp"
#include "core/enumerators.hpp"
#include "flashmoe/error.hpp"
#include "flashmoe/problem.hpp"

namespace flashmoe {

namespace {

void check_dtype(const char* name, DType dtype) {
  if (is_enumerator(kDTypes, dtype)) return;
  throw InvalidArgument(fmt::format("{} (number {}) must be one of {}: use a named enumerator", name,
                                    static_cast<int>(dtype), names_of(kDTypes)));
}

void check_parameters(const RouterConfig& config, const RouterParameters& parameters) {
  if (parameters.weight != nullptr) {
    if (parameters.hidden < 1 || parameters.hidden > Limits::hidden) {
      throw InvalidArgument(
          fmt::format("hidden ({}) of the router must be between 1 and {}: give the columns of its "
                      "weight",
                      parameters.hidden, Limits::hidden));
    }
    check_dtype("weight_dtype", parameters.weight_dtype);
    check_pointer("weight", parameters.weight, dtype_bytes(parameters.weight_dtype));
  }
  if (parameters.bias != nullptr) {
    if (parameters.weight == nullptr) {
      throw InvalidArgument("a router's bias needs its weight: pass both, or add the bias to the logits");
    }
    check_pointer("bias", parameters.bias, sizeof(float));
  }
  if (parameters.selection_bias != nullptr) {
    if (config.function != RouterFunction::sigmoid_grouped) {
      throw InvalidArgument(fmt::format("selection_bias goes with router function sigmoid_grouped, got {}: pass null",
                                        to_string(config.function)));
    }
    check_pointer("selection_bias", parameters.selection_bias, sizeof(float));
  }
}

/// Whether there are tokens at all.
bool check_call(std::int64_t num_tokens, const std::int32_t* topk_ids, const float* topk_weights) {
  if (num_tokens < 0) {
    throw InvalidArgument(fmt::format("num_tokens ({}) must be 0 or more: pass how many rows there are", num_tokens));
  }
  if (num_tokens == 0) return false;
  check_pointer("topk_ids", topk_ids, sizeof(std::int32_t));
  check_pointer("topk_weights", topk_weights, sizeof(float));
  return true;
}

}  // namespace

Router::Router(const RouterConfig& config, const RouterParameters& parameters, const RouterPlace& place)
    : config_(config), place_(place), has_weight_(parameters.weight != nullptr) {
  validate(config);
  check_backend(place.backend);
  check_parameters(config, parameters);
  engine_ = make_router_engine(config, parameters, place);
}

void Router::route(DType dtype, ConstRows x, std::int32_t* topk_ids, float* topk_weights, void* stream) const {
  if (!has_weight_) {
    throw InvalidArgument(
        "a router of hidden states needs its weight: make it with RouterParameters.weight, or route "
        "logits");
  }
  check_dtype("dtype", dtype);
  if (!check_call(x.num_rows, topk_ids, topk_weights)) return;
  check_pointer("x", x.data, dtype_bytes(dtype));
  engine_->route(dtype, x, topk_ids, topk_weights, stream);
}

void Router::route_logits(std::int64_t num_tokens, const float* logits, std::int32_t* topk_ids, float* topk_weights,
                          void* stream) const {
  if (!check_call(num_tokens, topk_ids, topk_weights)) return;
  check_pointer("logits", logits, sizeof(float));
  engine_->route_logits(num_tokens, logits, topk_ids, topk_weights, stream);
}

}  // namespace flashmoe
