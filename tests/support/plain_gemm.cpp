// Stands in for src/cpu/gemm.cpp in test programs carried to machines without OpenBLAS: same contract, plain loops.
#include <algorithm>
#include <numeric>

#include "cpu/gemm.hpp"

namespace flashmoe::cpu {

namespace {
/// Rows of zeros, which fill up small tiles, are not multiplied.
template <class T>
void plain(int m, int n, int k, const T* a, const T* b, T* c) {
  for (int row = 0; row < m; ++row) {
    const T* left = a + static_cast<std::int64_t>(row) * k;
    T* out = c + static_cast<std::int64_t>(row) * n;
    const bool zero = std::all_of(left, left + k, [](T value) { return value == T{0}; });
    for (int column = 0; column < n; ++column) {
      const T* right = b + static_cast<std::int64_t>(column) * k;
      out[column] = zero ? T{0} : std::inner_product(left, left + k, right, T{0});
    }
  }
}
}  // namespace

void multiply(int m, int n, int k, const float* a, const float* b, float* c) { plain(m, n, k, a, b, c); }
void multiply(int m, int n, int k, const double* a, const double* b, double* c) { plain(m, n, k, a, b, c); }
void check_blas() {}

}  // namespace flashmoe::cpu
