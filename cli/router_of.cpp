#include "router_of.hpp"

#include <cmath>

#include "api/host_router.hpp"
#include "io/synthetic.hpp"

namespace flashmoe::cli {

namespace {

const float* data_or_null(const std::vector<float>& values) { return values.empty() ? nullptr : values.data(); }

}  // namespace

RouterOf::RouterOf(const Job& job, const std::optional<CheckpointLayer>& checkpoint)
    : hidden_(job.problem.hidden), dtype_(job.problem.dtype), device_(job.process ? job.process->device : 0) {
  if (checkpoint) {
    config_ = checkpoint->config().router;
    weight_ = checkpoint->router_weight();
    bias_ = checkpoint->router_bias();
    selection_bias_ = checkpoint->selection_bias();
    return;
  }
  config_ = job.model ? job.model->router : RouterConfig{};
  config_.num_experts = job.problem.num_experts;
  config_.top_k = job.problem.top_k;
  weight_.resize(static_cast<std::size_t>(config_.num_experts) * static_cast<std::size_t>(hidden_));
  fill_uniform(DType::fp32, stream(job.seed, Stream::routing, 0), std::sqrt(3.0 / hidden_),
               static_cast<std::int64_t>(weight_.size()), weight_.data());
}

RankRouting RouterOf::route(ConstRows x, BackendKind backend) const {
  const std::size_t num_routes = static_cast<std::size_t>(x.num_rows) * static_cast<std::size_t>(config_.top_k);
  RankRouting routing{std::vector<std::int32_t>(num_routes), std::vector<float>(num_routes)};
  route_from_host(config_,
                  {.hidden = hidden_,
                   .weight = data_or_null(weight_),
                   .bias = data_or_null(bias_),
                   .selection_bias = data_or_null(selection_bias_)},
                  {.backend = backend, .device = device_}, dtype_, x, routing.topk_ids.data(),
                  routing.topk_weights.data());
  return routing;
}

}  // namespace flashmoe::cli
