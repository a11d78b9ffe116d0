// Routings from .npy files.
#pragma once

#include <cstdint>
#include <filesystem>

#include "flashmoe/problem.hpp"
#include "io/synthetic_routing.hpp"

namespace flashmoe {

/// The whole batch's routing, tokens counted over the ranks in order.
///   ids_file      int32 or int64 [num_tokens][top_k], values -1..num_experts-1
///   weights_file  float32 or float64 [num_tokens][top_k]; empty: every weight is 1 / top_k
/// Throws InvalidArgument, naming the file, when one is unreadable or does not fit.
RankRouting read_routing(const std::filesystem::path& ids_file, const std::filesystem::path& weights_file,
                     const Problem& problem, std::int64_t num_tokens);

}  // namespace flashmoe
