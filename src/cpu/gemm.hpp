// Matrix product of one tile on the CPU (OpenBLAS, one thread).
#pragma once

#include <cstdint>

namespace flashmoe::cpu {

/// c[m][n] = sum over k of a[m][k] * b[n][k], all row-major and dense. fp32 and fp64.
/// The sum over k runs in an order that depends on the shape alone: callers keep m and n fixed, so a row's result
/// depends neither on its position nor on the other rows.
/// Thread-safe.
void multiply(int m, int n, int k, const float* a, const float* b, float* c);
void multiply(int m, int n, int k, const double* a, const double* b, double* c);

/// Checks the BLAS build against a naive product once per process. Throws Error when it computes wrong results on
/// this CPU, as old OpenBLAS kernels do on some.
void check_blas();

}  // namespace flashmoe::cpu
