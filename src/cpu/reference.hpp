// The naive layer in double precision: the first link of the oracle chain.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "core/expert_source.hpp"
#include "flashmoe/problem.hpp"
#include "flashmoe/views.hpp"

namespace flashmoe::reference {

/// One expert MLP in double on one row, nothing rounded in between: operands count as stored (tf32 ones are not
/// rounded to tf32 first). `weight` scales as Problem describes.
///   x [hidden] double, out [hidden] double (the route's contribution, weight applied)
/// Throws InvalidArgument when the problem has a bias and the expert none.
void expert_row(const Problem& problem, const ExpertParameters& expert, const double* x, double weight, double* out);

/// The layer on one rank's tokens, all experts at hand, whatever num_ranks says.
///   x [num_tokens][hidden] of problem.dtype; y [num_tokens][hidden] double, rows in the order of `rows`
/// `rows`: token indices to compute (all when empty). Masked (-1) routes contribute exactly 0 and neither their
/// weight nor any expert is looked at; a token's other routes are summed in the order of expert, then choice.
/// Every bit of y depends on that token and its experts alone: not on the batch, `rows` or `num_threads`.
/// Asks for experts in ascending order and holds at most `num_threads` at a time, so a source that makes them on
/// demand needs no more room. Throws InvalidArgument on an id outside -1..num_experts-1 in any row, a row index
/// outside the batch, and num_threads < 1; passes on what the source throws.
std::vector<double> layer(const Problem& problem, const ExpertSource& experts, ConstRows x, RoutingView routing,
                          const std::vector<std::int64_t>& rows = {}, int num_threads = 1);

/// ||value - reference|| / ||reference|| over all elements; 0 when both are all zero; infinite when only the
/// reference is; NaN when any difference is NaN. Throws InvalidArgument when the lengths differ.
double relative_l2(const std::vector<double>& value, const std::vector<double>& reference);

/// Largest relative L2 the numerics contract allows against this reference, on the same rounded inputs.
double tolerance(DType dtype);

/// What `num_elements` results may show: tolerance(), and more where fewer than 65,536 values were rounded
/// independently, so that the estimate scatters around its mean (three roundings to bf16 put that at 0.95 of the
/// tolerance). Of the three one is of the intermediate, whose values are `num_intermediates`: the intermediate times
/// the tokens' distinct routes. All elements of a row share those errors, so a long row of a narrow expert averages
/// over few. Left out: many.
double error_bar(DType dtype, std::int64_t num_elements,
                 std::int64_t num_intermediates = std::numeric_limits<std::int64_t>::max());

/// Largest |value - reference|, 0 when there is no element; NaN when any difference is NaN. Throws as relative_l2.
double max_abs_error(const std::vector<double>& value, const std::vector<double>& reference);

}  // namespace flashmoe::reference
