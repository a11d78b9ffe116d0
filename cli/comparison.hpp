// The results against the fp64 reference.
#pragma once

#include <cstdint>
#include <vector>

#include "batch.hpp"
#include "core/expert_source.hpp"

namespace flashmoe::cli {

/// Errors over some rows; none: all zero.
struct Deviation {
  std::int64_t num_tokens = 0;     ///< with at least one element measured
  double error_squares = 0;        ///< sum of (y - reference)^2
  double reference_squares = 0;
  double rel_l2 = 0;               ///< ||y - reference|| / ||reference||, infinite when only the reference is zero
  double max_abs_error = 0;
  std::int64_t num_not_finite = 0; ///< elements that are NaN or Inf where the reference, rounded to the type, is not,
                                   ///< or not NaN where it is
  std::int64_t num_measured = 0;   ///< elements
  std::int64_t num_intermediates = 0;  ///< values between up and down product that these tokens' results come from
  std::int64_t num_unmeasured = 0; ///< elements without an error, since the reference is NaN or Inf
};

struct Comparison {
  Deviation all;
  std::vector<Deviation> ranks;  // [num_ranks]
  double tolerance = 0;
  bool passed = true;            ///< true as well when nothing was measured
};

/// Tokens that a command compares beside what it measures, unless the job says otherwise.
inline constexpr std::int64_t kSampledTokens = 8;

/// Which tokens are compared, and by how many threads.
struct Sample {
  std::int64_t num_tokens = 0;  ///< drawn by the seed from all ranks, or all there are
  std::uint64_t seed = 1;
  std::vector<int> ranks;       ///< of the tokens drawn only those of these ranks are compared
  int num_threads = 1;
};

/// Every rank's part, [num_ranks].
std::vector<Deviation> compare(const Batch& batch, const ExpertSource& experts, const Sample& sample);

/// The verdict over all ranks' parts.
Comparison judge(const Problem& problem, std::vector<Deviation> ranks);

}  // namespace flashmoe::cli
