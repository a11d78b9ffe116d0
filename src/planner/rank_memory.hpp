// What a rank holds in memory while its layer is called.
#pragma once

#include <cstdint>

#include "flashmoe/problem.hpp"

namespace flashmoe {

/// Heap and scratch as given, weights with biases, and the tensors of a call of max_tokens tokens.
std::uint64_t rank_memory_bytes(const Problem& problem, std::uint64_t heap_bytes, std::uint64_t local_bytes);

}  // namespace flashmoe
