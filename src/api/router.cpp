#include "flashmoe/router.hpp"

#include <fmt/format.h>

#include "api/checks.hpp"
#include "core/enumerators.hpp"
#include "cpu/router.hpp"
#include "flashmoe/error.hpp"
#include "flashmoe/problem.hpp"

namespace flashmoe {

namespace {

std::vector<float> copy(const char* name, const float* values, std::size_t count) {
  if (values == nullptr) return {};
  check_pointer(name, values, sizeof(float));
  return {values, values + count};
}

const float* data_or_null(const std::vector<float>& values) { return values.empty() ? nullptr : values.data(); }

}  // namespace

Router::Router(const RouterConfig& config, const RouterParameters& parameters)
    : config_(config), hidden_(parameters.hidden) {
  validate(config);
  const auto num_experts = static_cast<std::size_t>(config.num_experts);
  if (parameters.weight != nullptr && (hidden_ < 1 || hidden_ > Limits::hidden)) {
    throw InvalidArgument(fmt::format("hidden ({}) of the router must be between 1 and {}: give the columns of its weight",
                                      hidden_, Limits::hidden));
  }
  if (parameters.weight == nullptr && parameters.bias != nullptr) {
    throw InvalidArgument("a router's bias needs its weight: pass both, or add the bias to the logits");
  }
  if (parameters.selection_bias != nullptr && config.function != RouterFunction::sigmoid_grouped) {
    throw InvalidArgument(fmt::format("selection_bias goes with router function sigmoid_grouped, got {}: pass null",
                                      to_string(config.function)));
  }
  weight_ = copy("weight", parameters.weight, num_experts * static_cast<std::size_t>(parameters.weight ? hidden_ : 0));
  bias_ = copy("bias", parameters.bias, num_experts);
  selection_bias_ = copy("selection_bias", parameters.selection_bias, num_experts);
}

void Router::route(DType dtype, ConstRows x, std::int32_t* topk_ids, float* topk_weights) const {
  if (weight_.empty()) {
    throw InvalidArgument("a router of hidden states needs its weight: make it with RouterParameters.weight, or route "
                          "logits");
  }
  if (!is_enumerator(kDTypes, dtype)) {
    throw InvalidArgument(fmt::format("dtype (number {}) must be one of {}: use a named enumerator",
                                      static_cast<int>(dtype), names_of(kDTypes)));
  }
  if (x.num_rows > 0) check_pointer("x", x.data, dtype_bytes(dtype));
  std::vector<float> logits(static_cast<std::size_t>(x.num_rows < 0 ? 0 : x.num_rows) *
                            static_cast<std::size_t>(config_.num_experts));
  router_logits({.num_experts = config_.num_experts,
                 .hidden = hidden_,
                 .weight = weight_.data(),
                 .bias = data_or_null(bias_)},
                dtype, x, logits.data());
  route_logits(x.num_rows, logits.data(), topk_ids, topk_weights);
}

void Router::route_logits(std::int64_t num_tokens, const float* logits, std::int32_t* topk_ids,
                          float* topk_weights) const {
  if (num_tokens > 0) {
    check_pointer("logits", logits, sizeof(float));
    check_pointer("topk_ids", topk_ids, sizeof(std::int32_t));
    check_pointer("topk_weights", topk_weights, sizeof(float));
  }
  flashmoe::route_logits(config_, num_tokens, logits, data_or_null(selection_bias_), topk_ids, topk_weights);
}

}  // namespace flashmoe
