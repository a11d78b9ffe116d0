// The element-wise function between the two expert matrices, one source for reference, emulator and device code.
// T is float or double. NaN in, NaN out: comparisons are arranged so that no clamp swallows one.
#pragma once

#include <cmath>

#include "core/annotate.hpp"
#include "flashmoe/types.hpp"

namespace flashmoe {

/// On the GPU by two approximate instructions (a few units in the last place of fp32): epilogues wait for it, and for its
/// code to be fetched.
template <class T>
FLASHMOE_HD inline T sigmoid(T x) {
#ifdef __CUDA_ARCH__
  if constexpr (sizeof(T) == sizeof(float)) {
    float power;  // e^-x
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * -1.4426950408889634f));
    float result;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(1.0f + power));
    return result;
  }
#endif
  return T(1) / (T(1) + std::exp(-x));
}

/// An activation of one argument; every one but swiglu_clamped, which exists only gated.
///   silu          x * sigmoid(x)
///   gelu_erf      x * Phi(x), by erfc, which keeps its digits where 1 + erf cancels   (Hendrycks, Gimpel 2016)
///   gelu_tanh     x/2 * (1 + tanh(u)) = x * sigmoid(2u), u = sqrt(2/pi) * (x + 0.044715 x^3)
///   relu_squared  max(x, 0)^2                                                          (So et al. 2021)
template <class T>
FLASHMOE_HD inline T activate(Activation activation, T x) {
  switch (activation) {
    case Activation::silu: return x * sigmoid(x);
    case Activation::gelu_erf: return T(0.5) * x * std::erfc(x * T(-0.70710678118654752440));
    case Activation::gelu_tanh: {
      const T u = T(0.79788456080286535588) * (x + T(0.044715) * x * x * x);
      return x * sigmoid(T(2) * u);
    }
    case Activation::relu: return x < T(0) ? T(0) : x;
    case Activation::relu_squared: return x < T(0) ? T(0) : x * x;
    case Activation::identity: return x;
    case Activation::swiglu_clamped: break;
  }
  return T(NAN);  // swiglu_clamped without a gate: validate() refuses it
}

/// The gated form: activate(gate) * up, and for swiglu_clamped, with gate' = min(gate, limit) and
/// up' = clamp(up, -limit, limit), gate' * sigmoid(alpha * gate') * (up' + 1). The others ignore alpha and limit.
template <class T>
FLASHMOE_HD inline T gate_up(Activation activation, T gate, T up, T alpha, T limit) {
  if (activation != Activation::swiglu_clamped) return activate(activation, gate) * up;
  const T clamped_gate = gate > limit ? limit : gate;
  const T clamped_up = up > limit ? limit : (up < -limit ? -limit : up);
  return clamped_gate * sigmoid(alpha * clamped_gate) * (clamped_up + T(1));
}

}  // namespace flashmoe
