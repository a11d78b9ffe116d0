// Stands in for src/cpu/gemm.cpp in test programs carried to machines without OpenBLAS: same contract, plain loops.
#include "cpu/gemm.hpp"

namespace flashmoe::cpu {

namespace {
template <class T>
void plain(int m, int n, int k, const T* a, const T* b, T* c) {
  for (int row = 0; row < m; ++row) {
    for (int column = 0; column < n; ++column) {
      T sum = 0;
      for (int i = 0; i < k; ++i) {
        sum += a[static_cast<std::int64_t>(row) * k + i] * b[static_cast<std::int64_t>(column) * k + i];
      }
      c[static_cast<std::int64_t>(row) * n + column] = sum;
    }
  }
}
}  // namespace

void multiply(int m, int n, int k, const float* a, const float* b, float* c) { plain(m, n, k, a, b, c); }
void multiply(int m, int n, int k, const double* a, const double* b, double* c) { plain(m, n, k, a, b, c); }
void check_blas() {}

}  // namespace flashmoe::cpu
