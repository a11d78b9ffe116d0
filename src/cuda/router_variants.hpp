// The router's kernels, one dtype a source file.
#pragma once

#include <array>

#include "cuda/router_args.hpp"

namespace flashmoe::cuda_backend {

struct RouterVariant {
  const void* function;
  int rows;                              ///< tokens of a tile
  int (*shared_bytes)(int num_experts);  ///< dynamic shared memory of a block
};
using RouterVariants = std::array<RouterVariant, 4>;

inline constexpr int kRouterThreads = 512;

RouterVariants router_variants_bf16();
RouterVariants router_variants_fp16();
RouterVariants router_variants_fp32();

inline constexpr int kGivenLogitsThreads = 256;
/// Tokens whose logits a warp holds at once.
constexpr int given_logits_rows(int num_experts) { return num_experts <= 256 ? kTokensAtOnce : 1; }
/// Dynamic shared memory of a warp, in words: its scratch and those logits.
constexpr int given_logits_words(int num_experts) { return kChoiceScratch + given_logits_rows(num_experts) * num_experts; }
const void* given_logits_kernel();

}  // namespace flashmoe::cuda_backend
