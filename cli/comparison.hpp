// The results against the fp64 reference.
#pragma once

#include <cstdint>
#include <vector>

#include "batch.hpp"
#include "core/expert_source.hpp"

namespace flashmoe::cli {

/// Errors over some rows; none: all zero.
struct Deviation {
  std::int64_t num_tokens = 0;
  double rel_l2 = 0;               ///< ||y - reference|| / ||reference||, infinite when only the reference is zero
  double max_abs_error = 0;
  std::int64_t num_not_finite = 0; ///< elements that are NaN or Inf where the reference, rounded to the type, is not
};

struct Comparison {
  Deviation all;
  std::vector<Deviation> ranks;  // [num_ranks]
  double tolerance = 0;
  bool passed = true;            ///< true as well when nothing was compared
};

/// Largest relative L2 the numerics contract allows for `num_elements` results.
double tolerance(DType dtype, std::int64_t num_elements);

/// Compares `num_tokens` tokens, drawn by the seed from all ranks, or all there are.
Comparison compare(const Batch& batch, const ExpertSource& experts, std::int64_t num_tokens, std::uint64_t seed,
                   int num_threads);

}  // namespace flashmoe::cli
