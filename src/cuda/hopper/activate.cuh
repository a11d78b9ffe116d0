// What both epilogues do with accumulators: pick the activation once a tile, and round pairs of values.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "core/activation.hpp"
#include "cuda/element.cuh"

namespace flashmoe::cuda_backend::hopper {

/// apply(std::integral_constant<Activation, ..>{}). The switch is outside the loop over accumulators: they have no
/// addresses, so the loop is unrolled in each case.
template <class Apply>
__device__ __forceinline__ void with_activation(Activation activation, const Apply& apply) {
  switch (activation) {
    case Activation::silu: return apply(std::integral_constant<Activation, Activation::silu>{});
    case Activation::gelu_erf: return apply(std::integral_constant<Activation, Activation::gelu_erf>{});
    case Activation::gelu_tanh: return apply(std::integral_constant<Activation, Activation::gelu_tanh>{});
    case Activation::relu: return apply(std::integral_constant<Activation, Activation::relu>{});
    case Activation::relu_squared: return apply(std::integral_constant<Activation, Activation::relu_squared>{});
    case Activation::identity: return apply(std::integral_constant<Activation, Activation::identity>{});
    case Activation::swiglu_clamped: return apply(std::integral_constant<Activation, Activation::swiglu_clamped>{});
  }
}

/// Two elements, `low` first in memory.
template <DType dtype>
__device__ inline std::uint32_t round_pair(float low, float high) {
  struct alignas(4) Pair {
    typename Element<dtype>::Stored low, high;
  } const pair{Element<dtype>::round(low), Element<dtype>::round(high)};
  std::uint32_t bits;
  memcpy(&bits, &pair, sizeof(bits));
  return bits;
}

}  // namespace flashmoe::cuda_backend::hopper
