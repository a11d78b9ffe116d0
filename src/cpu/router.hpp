// The router's own matrix product, for callers that have hidden states instead of logits.
#pragma once

#include <cstdint>

#include "flashmoe/types.hpp"
#include "flashmoe/views.hpp"

namespace flashmoe {

/// Parameters of a router: logits = x W^T + b.
struct RouterGate {
  int num_experts = 0;
  int hidden = 0;
  const float* weight = nullptr;  // [num_experts][hidden]
  const float* bias = nullptr;    // [num_experts] or null
};

/// Logits of a batch, accumulated in double and rounded once to fp32: near ties fall as the model's fp32 router
/// would have them, not as a 16-bit one.
///   x [num_tokens][hidden] of `dtype`; logits [num_tokens][num_experts] fp32 out
void router_logits(const RouterGate& gate, DType dtype, ConstRows x, float* logits);

}  // namespace flashmoe
