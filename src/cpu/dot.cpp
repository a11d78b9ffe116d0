#include "cpu/dot.hpp"

#include <cstring>

namespace flashmoe {
namespace {

// Two doubles, one SSE2 or NEON register. Explicit, because -O2 leaves the plain loop scalar.
using Pair = double __attribute__((vector_size(16)));

Pair load_pair(const double* source) {
  Pair pair;
  std::memcpy(&pair, source, sizeof pair);
  return pair;
}

// Rows share the loads of the weights; with four, eight partial sums keep the multiply-add units busy.
template <int kNumRows>
void dot_block(const double* weights, const double* rows, std::int64_t length, double* sums) {
  Pair even[kNumRows] = {};
  Pair odd[kNumRows] = {};
  std::int64_t i = 0;
  for (; i + 4 <= length; i += 4) {
    const Pair first = load_pair(weights + i);
    const Pair second = load_pair(weights + i + 2);
    for (int r = 0; r < kNumRows; ++r) {
      even[r] += first * load_pair(rows + r * length + i);
      odd[r] += second * load_pair(rows + r * length + i + 2);
    }
  }
  for (int r = 0; r < kNumRows; ++r) {
    double partial[4] = {even[r][0], even[r][1], odd[r][0], odd[r][1]};
    for (std::int64_t tail = i; tail < length; ++tail) partial[tail - i] += weights[tail] * rows[r * length + tail];
    sums[r] = (partial[0] + partial[1]) + (partial[2] + partial[3]);
  }
}

}  // namespace

void dot_rows(const double* weights, const double* rows, std::int64_t num_rows, std::int64_t length, double* sums) {
  std::int64_t r = 0;
  for (; r + 4 <= num_rows; r += 4) dot_block<4>(weights, rows + r * length, length, sums + r);
  for (; r < num_rows; ++r) dot_block<1>(weights, rows + r * length, length, sums + r);
}

}  // namespace flashmoe
