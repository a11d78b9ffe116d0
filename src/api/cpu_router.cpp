#include <cstddef>
#include <vector>

#include "api/router_engine.hpp"
#include "core/numeric.hpp"
#include "cpu/router.hpp"

namespace flashmoe {

namespace {

std::vector<float> copy(const float* values, std::size_t count) {
  if (values == nullptr) return {};
  return {values, values + count};
}

const float* data_or_null(const std::vector<float>& values) { return values.empty() ? nullptr : values.data(); }

/// In double, with a copy of the parameters.
class CpuRouter final : public RouterEngine {
 public:
  CpuRouter(const RouterConfig& config, const RouterParameters& parameters)
      : config_(config),
        hidden_(parameters.hidden),
        bias_(copy(parameters.bias, static_cast<std::size_t>(config.num_experts))),
        selection_bias_(copy(parameters.selection_bias, static_cast<std::size_t>(config.num_experts))) {
    if (parameters.weight == nullptr) return;
    weight_.resize(static_cast<std::size_t>(config.num_experts) * static_cast<std::size_t>(hidden_));
    for (std::size_t i = 0; i < weight_.size(); ++i) {
      weight_[i] =
          static_cast<float>(load_element(parameters.weight_dtype, parameters.weight, static_cast<std::int64_t>(i)));
    }
  }

  void route(DType dtype, ConstRows x, std::int32_t* topk_ids, float* topk_weights, void* stream) const override {
    std::vector<float> logits(static_cast<std::size_t>(x.num_rows) * static_cast<std::size_t>(config_.num_experts));
    router_logits(
        {.num_experts = config_.num_experts, .hidden = hidden_, .weight = weight_.data(), .bias = data_or_null(bias_)},
        dtype, x, logits.data());
    route_logits(x.num_rows, logits.data(), topk_ids, topk_weights, stream);
  }

  void route_logits(std::int64_t num_tokens, const float* logits, std::int32_t* topk_ids, float* topk_weights,
                    void*) const override {
    flashmoe::route_logits(config_, num_tokens, logits, data_or_null(selection_bias_), topk_ids, topk_weights);
  }

 private:
  RouterConfig config_;
  int hidden_;
  std::vector<float> weight_, bias_, selection_bias_;
};

}  // namespace

std::unique_ptr<RouterEngine> make_cpu_router(const RouterConfig& config, const RouterParameters& parameters) {
  return std::make_unique<CpuRouter>(config, parameters);
}

}  // namespace flashmoe
