// Matrix product of one tile on the CPU (OpenBLAS, one thread).
#pragma once

#include <cstdint>

namespace flashmoe::cpu {

/// Rows that BLAS gets at a time.
inline constexpr int kRowGroup = 16;

/// c[m][n] = sum over k of a[m][k] * b[n][k], all row-major and dense. fp32 and fp64.
/// A row's result depends neither on its position nor on the other rows, as long as n and k are the same and
/// every m is a multiple of kRowGroup (or one and the same m below it): the order of the sum over k depends on the shape
/// of a group alone.
/// Thread-safe.
void multiply(int m, int n, int k, const float* a, const float* b, float* c);
void multiply(int m, int n, int k, const double* a, const double* b, double* c);

/// The same product one row at a time, slower: what multiply() does where this BLAS treats rows of a tile differently.
void multiply_row_by_row(int m, int n, int k, const float* a, const float* b, float* c);
void multiply_row_by_row(int m, int n, int k, const double* a, const double* b, double* c);

/// Checks the BLAS build against a naive product once per process. Throws Error when it computes wrong results on
/// this CPU, as old OpenBLAS kernels do on some.
void check_blas();

}  // namespace flashmoe::cpu
