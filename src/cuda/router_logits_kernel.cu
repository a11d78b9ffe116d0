// Routes of logits that somebody else computed, a token or a few a warp.
#include "cuda/router_choice.cuh"
#include "cuda/router_variants.hpp"

namespace flashmoe::cuda_backend {

namespace {

__global__ void __launch_bounds__(kGivenLogitsThreads, 2) router_logits_kernel(const __grid_constant__ RouterArgs args) {
  extern __shared__ __align__(128) char shared[];
  constexpr int num_warps = kGivenLogitsThreads / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  auto* scratch = reinterpret_cast<std::uint32_t*>(shared) + warp * given_logits_words(args.num_experts);
  float* logits = reinterpret_cast<float*>(scratch + kChoiceScratch);
  const std::int64_t num_tokens = args.num_tokens == nullptr ? args.max_tokens : min(*args.num_tokens, args.max_tokens);
  const std::int64_t total_warps = std::int64_t{gridDim.x} * num_warps;
  const int at_once = num_tokens > total_warps ? given_logits_rows(args.num_experts) : 1;
  for (std::int64_t token = (std::int64_t{blockIdx.x} * num_warps + warp) * at_once; token < num_tokens;
       token += total_warps * at_once) {
    const int num_own = static_cast<int>(min(std::int64_t{at_once}, num_tokens - token));
    for (int i = lane; i < num_own * args.num_experts; i += 32) {
      logits[i] = args.given_logits[token * args.num_experts + i];
    }
    __syncwarp();
    route_tokens(args,
                 {.logits = logits,
                  .stride = args.num_experts,
                  .selection_bias = args.selection_bias,
                  .scratch = scratch,
                  .ids = args.topk_ids + token * args.top_k,
                  .weights = args.topk_weights + token * args.top_k},
                 num_own);
  }
}

}  // namespace

const void* given_logits_kernel() { return reinterpret_cast<const void*>(&router_logits_kernel); }

}  // namespace flashmoe::cuda_backend
