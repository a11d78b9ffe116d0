// What a launch of the router takes: plain values, so that host code compiled by g++ can fill it in.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "flashmoe/router.hpp"
#include "flashmoe/types.hpp"

namespace flashmoe::cuda_backend {

/// Limits of the GPU router, inside those of validate(RouterConfig).
struct GpuRouterLimits {
  static constexpr int num_experts = 1024;
  static constexpr int num_groups = 32;
};

/// Words of shared memory that a warp needs to choose experts.
inline constexpr int kChoiceScratch = GpuRouterLimits::num_experts;
/// Tokens that a warp routes side by side, where it has so many of up to 256 experts.
inline constexpr int kTokensAtOnce = 4;

/// All pointers are device memory of the launching device.
struct RouterArgs {
  const void* x = nullptr;                  ///< [max_tokens][hidden] of the launch's dtype, 16-byte aligned
  const void* gate = nullptr;               ///< [num_experts][hidden] of the same dtype, 16-byte aligned
  const float* gate_bias = nullptr;         ///< [num_experts] or null, added to the logits
  const float* selection_bias = nullptr;    ///< [num_experts] or null, see route_logits()
  const float* given_logits = nullptr;      ///< [num_tokens][num_experts] instead of x and gate, or null
  float* logits = nullptr;                  ///< [num_tokens][num_experts] out, or null
  std::int32_t* topk_ids = nullptr;         ///< [num_tokens][top_k] out
  float* topk_weights = nullptr;            ///< [num_tokens][top_k] out
  const std::int64_t* num_tokens = nullptr; ///< device memory, at most max_tokens; null: max_tokens
  std::int64_t max_tokens = 0;
  int hidden = 0;                           ///< a multiple of 8
  int num_experts = 0;
  int top_k = 0;
  RouterFunction function = RouterFunction::softmax_topk;
  bool renormalize = false;
  float scaling_factor = 1.0f;
  int num_groups = 1;
  int topk_groups = 1;
  float jitter_epsilon = 0.01f;
};

/// One launch on `stream`; nothing where max_tokens is 0. dtype: bf16, fp16, or fp32 (tf32 layers store fp32, and route in
/// fp32). A logit is the sum over parts of hidden, each in fp32 in order of k: bf16 and fp16 on Hopper have 8 parts and add
/// them as a binary tree, everything else has 16 and adds them two by two and then in order. Its bits depend on the token's
/// row and the kind of GPU alone, not on the batch. Capturable. Rows of x from num_tokens to max_tokens may be read.
/// Throws CudaError when the launch is refused.
void launch_router(DType dtype, const RouterArgs& args, cudaStream_t stream);

}  // namespace flashmoe::cuda_backend
