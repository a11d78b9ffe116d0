// How often each expert was chosen, recorded elsewhere.
#pragma once

#include <filesystem>
#include <vector>

namespace flashmoe {

/// Reads a JSON array of num_experts counts, numbers >= 0 of which at least `top_k` are above 0. Throws
/// InvalidArgument, naming the file, for anything else.
std::vector<double> read_histogram(const std::filesystem::path& file, int num_experts, int top_k);

}  // namespace flashmoe
