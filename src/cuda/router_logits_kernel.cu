// Routes of logits that somebody else computed, a warp a token.
#include "cuda/router_choice.cuh"
#include "cuda/router_variants.hpp"

namespace flashmoe::cuda_backend {

namespace {

__global__ void __launch_bounds__(kGivenLogitsThreads) router_logits_kernel(const __grid_constant__ RouterArgs args) {
  extern __shared__ __align__(128) char shared[];
  constexpr int num_warps = kGivenLogitsThreads / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  auto* scratch = reinterpret_cast<std::uint32_t*>(shared) + warp * given_logits_words(args.num_experts);
  float* logits = reinterpret_cast<float*>(scratch + choice_scratch(args.num_experts));
  const std::int64_t num_tokens = args.num_tokens == nullptr ? args.max_tokens : min(*args.num_tokens, args.max_tokens);
  for (std::int64_t token = std::int64_t{blockIdx.x} * num_warps + warp; token < num_tokens;
       token += std::int64_t{gridDim.x} * num_warps) {
    for (int expert = lane; expert < args.num_experts; expert += 32) {
      logits[expert] = args.given_logits[token * args.num_experts + expert];
    }
    __syncwarp();
    route_token(args, {logits, args.selection_bias, scratch}, args.topk_ids + token * args.top_k,
                args.topk_weights + token * args.top_k);
  }
}

}  // namespace

const void* given_logits_kernel() { return reinterpret_cast<const void*>(&router_logits_kernel); }

}  // namespace flashmoe::cuda_backend
