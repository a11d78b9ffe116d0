// Dot products in double with one fixed order of additions, whatever the number of rows beside.
#pragma once

#include <cstdint>

namespace flashmoe {

/// sums[r] = sum over i of weights[i] * rows[r * length + i], r in 0..num_rows-1.
/// Each row is summed in four interleaved partial sums (i % 4), joined as (0 + 1) + (2 + 3): a row's result
/// depends on that row and the weights alone.
void dot_rows(const double* weights, const double* rows, std::int64_t num_rows, std::int64_t length, double* sums);

}  // namespace flashmoe
