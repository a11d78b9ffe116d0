// Division of small integers, one source for host and device code.
#pragma once

#include "core/annotate.hpp"

namespace flashmoe {

/// n / d for 0 <= n < 2^21 and d > 0. A GPU has no instruction for it; this takes seven, integers about 25, and a GPU has to fetch
/// what runs once a call. Exact: (n + 1/2) / d is at least 1 / 2d from any integer, and reciprocal and product are wrong by less
/// than 2^-22 of it together.
FLASHMOE_HD constexpr int divide_small(int n, int d) {
#if defined(__CUDA_ARCH__)
  if (!__builtin_is_constant_evaluated()) {  // std::is_constant_evaluated() is the host's
    float reciprocal = 0;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(static_cast<float>(d)));
    return static_cast<int>((static_cast<float>(n) + 0.5f) * reciprocal);
  }
#endif
  return n / d;
}

/// The least q with q * d >= n, for the same.
FLASHMOE_HD constexpr int ceil_divide_small(int n, int d) { return divide_small(n + d - 1, d); }

}  // namespace flashmoe
