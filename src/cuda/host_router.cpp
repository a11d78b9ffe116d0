#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/numeric.hpp"
#include "cuda/check.hpp"
#include "cuda/cuda_backend.hpp"
#include "cuda/cuda_router.hpp"
#include "cuda/memory.hpp"

namespace flashmoe {

namespace {

using cuda_backend::check;
using cuda_backend::DeviceMemory;

/// The weight in `dtype`; empty where that would change a value.
std::vector<std::byte> exactly(DType dtype, const float* weight, std::int64_t count) {
  std::vector<std::byte> stored(static_cast<std::size_t>(count) * dtype_bytes(dtype));
  for (std::int64_t i = 0; i < count; ++i) {
    store_element(dtype, stored.data(), i, weight[i]);
    if (std::bit_cast<std::uint32_t>(static_cast<float>(load_element(dtype, stored.data(), i))) !=
        std::bit_cast<std::uint32_t>(weight[i])) {
      return {};
    }
  }
  return stored;
}

DeviceMemory upload(int device, const void* data, std::size_t bytes) {
  DeviceMemory memory(device, bytes);
  if (bytes > 0) memory.upload(0, data, bytes);
  return memory;
}

}  // namespace

void route_on_gpu(const RouterConfig& config, const RouterParameters& parameters, int device, DType dtype, ConstRows x,
                  std::int32_t* topk_ids, float* topk_weights) {
  validate(config);
  require_device(device);
  const cuda_backend::DeviceGuard guard(device);
  const std::int64_t num_elements = x.num_rows * parameters.hidden;
  const auto num_experts = static_cast<std::size_t>(config.num_experts);
  const auto weights = static_cast<const float*>(parameters.weight);
  const std::int64_t num_weights = config.num_experts * std::int64_t{parameters.hidden};
  const bool narrow = dtype == DType::bf16 || dtype == DType::fp16;
  const std::vector<std::byte> kept = narrow ? exactly(dtype, weights, num_weights) : std::vector<std::byte>{};
  const DType travelling = kept.empty() ? DType::fp32 : dtype;

  std::vector<float> widened;
  if (travelling != dtype) {
    widened.resize(static_cast<std::size_t>(num_elements));
    for (std::int64_t i = 0; i < num_elements; ++i) {
      widened[static_cast<std::size_t>(i)] = static_cast<float>(load_element(dtype, x.data, i));
    }
  }
  const DeviceMemory gpu_x = upload(device, widened.empty() ? x.data : widened.data(),
                                    static_cast<std::size_t>(num_elements) * dtype_bytes(travelling));
  const DeviceMemory weight = upload(device, kept.empty() ? parameters.weight : kept.data(),
                                     static_cast<std::size_t>(num_weights) * dtype_bytes(travelling));
  const DeviceMemory bias = upload(device, parameters.bias, parameters.bias ? num_experts * sizeof(float) : 0);
  const DeviceMemory selection_bias =
      upload(device, parameters.selection_bias, parameters.selection_bias ? num_experts * sizeof(float) : 0);
  const std::size_t num_routes = static_cast<std::size_t>(x.num_rows) * static_cast<std::size_t>(config.top_k);
  const DeviceMemory ids(device, num_routes * sizeof(std::int32_t));
  const DeviceMemory route_weights(device, num_routes * sizeof(float));

  const Router router(config,
                      {.hidden = parameters.hidden,
                       .weight = weight.as<void>(),
                       .bias = parameters.bias ? bias.as<float>() : nullptr,
                       .selection_bias = parameters.selection_bias ? selection_bias.as<float>() : nullptr,
                       .weight_dtype = travelling},
                      {.backend = BackendKind::cuda, .device = device});
  router.route(travelling, {gpu_x.as<void>(), x.num_rows}, ids.as<std::int32_t>(), route_weights.as<float>());
  if (num_routes == 0) return;
  check(cudaMemcpy(topk_ids, ids.as<void>(), num_routes * sizeof(std::int32_t), cudaMemcpyDeviceToHost), "cudaMemcpy");
  check(cudaMemcpy(topk_weights, route_weights.as<void>(), num_routes * sizeof(float), cudaMemcpyDeviceToHost),
        "cudaMemcpy");
}

}  // namespace flashmoe
