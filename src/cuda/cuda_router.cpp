#include "cuda/cuda_router.hpp"

#include <fmt/format.h>

#include "cuda/caller_memory.hpp"
#include "cuda/check.hpp"
#include "cuda/router_args.hpp"
#include "flashmoe/error.hpp"

namespace flashmoe {

namespace {

using cuda_backend::DeviceGuard;
using cuda_backend::GpuRouterLimits;
using cuda_backend::RelaxedCapture;
using cuda_backend::require_gpu_memory;
using cuda_backend::require_row_memory;
using cuda_backend::RouterArgs;

/// tf32 is fp32 in memory, and logits are never rounded to it.
DType stored(DType dtype) { return dtype == DType::tf32 ? DType::fp32 : dtype; }

void check_limits(const RouterConfig& config, const RouterParameters& parameters) {
  if (config.num_experts > GpuRouterLimits::num_experts) {
    throw InvalidArgument(
        fmt::format("num_experts ({}) of a router on backend cuda must be at most {}: use backend cpu",
                    config.num_experts, GpuRouterLimits::num_experts));
  }
  if (config.num_groups > GpuRouterLimits::num_groups) {
    throw InvalidArgument(fmt::format("num_groups ({}) of a router on backend cuda must be at most {}: use backend cpu",
                                      config.num_groups, GpuRouterLimits::num_groups));
  }
  if (parameters.weight == nullptr) return;
  if (parameters.hidden % 8 != 0) {
    throw InvalidArgument(
        fmt::format("hidden ({}) of a router on backend cuda must be a multiple of 8: use backend cpu, "
                    "or pad x and weight with zeros",
                    parameters.hidden));
  }
  if (parameters.weight_dtype == DType::fp64) {
    throw InvalidArgument(
        "weight_dtype (fp64) of a router on backend cuda must be bf16, fp16 or fp32: convert the weight, "
        "or use backend cpu");
  }
}

class CudaRouter final : public RouterEngine {
 public:
  CudaRouter(const RouterConfig& config, const RouterParameters& parameters, int device)
      : weight_dtype_(stored(parameters.weight_dtype)), device_(device) {
    check_limits(config, parameters);
    const DeviceGuard guard(device);
    const RelaxedCapture relaxed;
    require_row_memory("weight", parameters.weight, device);
    require_gpu_memory("bias", parameters.bias, device);
    require_gpu_memory("selection_bias", parameters.selection_bias, device);
    rules_ = {.x = nullptr,
              .gate = parameters.weight,
              .gate_bias = parameters.bias,
              .selection_bias = parameters.selection_bias,
              .given_logits = nullptr,
              .logits = nullptr,
              .topk_ids = nullptr,
              .topk_weights = nullptr,
              .num_tokens = nullptr,
              .max_tokens = 0,
              .hidden = parameters.hidden,
              .num_experts = config.num_experts,
              .top_k = config.top_k,
              .function = config.function,
              .renormalize = config.renormalize,
              .scaling_factor = static_cast<float>(config.scaling_factor),
              .num_groups = config.num_groups,
              .topk_groups = config.topk_groups,
              .jitter_epsilon = static_cast<float>(config.jitter_epsilon)};
  }

  void route(DType dtype, ConstRows x, std::int32_t* topk_ids, float* topk_weights, void* stream) const override {
    if (stored(dtype) != weight_dtype_) {
      throw InvalidArgument(
          fmt::format("x ({}) and weight ({}) of a router on backend cuda must have one dtype: convert one",
                      to_string(dtype), to_string(weight_dtype_)));
    }
    require_row_memory("x", x.data, device_);
    RouterArgs args = rules_;
    args.x = x.data;
    launch("x", x.data, args, x.num_rows, topk_ids, topk_weights, stream);
  }

  void route_logits(std::int64_t num_tokens, const float* logits, std::int32_t* topk_ids, float* topk_weights,
                    void* stream) const override {
    RouterArgs args = rules_;
    args.given_logits = logits;
    launch("logits", logits, args, num_tokens, topk_ids, topk_weights, stream);
  }

 private:
  void launch(const char* name, const void* input, RouterArgs args, std::int64_t num_tokens, std::int32_t* topk_ids,
              float* topk_weights, void* stream) const {
    const DeviceGuard guard(device_);
    const RelaxedCapture relaxed;
    require_gpu_memory(name, input, device_);
    require_gpu_memory("topk_ids", topk_ids, device_);
    require_gpu_memory("topk_weights", topk_weights, device_);
    args.topk_ids = topk_ids;
    args.topk_weights = topk_weights;
    args.max_tokens = num_tokens;
    cuda_backend::launch_router(weight_dtype_, args, static_cast<cudaStream_t>(stream));
  }

  DType weight_dtype_;
  int device_;
  RouterArgs rules_;  // all but the tensors of a call
};

}  // namespace

std::unique_ptr<RouterEngine> make_cuda_router(const RouterConfig& config, const RouterParameters& parameters,
                                               int device) {
  return std::make_unique<CudaRouter>(config, parameters, device);
}

}  // namespace flashmoe
