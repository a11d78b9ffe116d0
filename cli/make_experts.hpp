// Experts made before they are needed.
#pragma once

#include <vector>

#include "core/expert_source.hpp"
#include "progress.hpp"

namespace flashmoe::cli {

/// Has `num_threads` threads make or read every expert of `wanted` (global), which a source with room for them keeps.
/// `stage`, unless null, advances by each. Throws what making one throws.
void make_experts(const ExpertSource& experts, const std::vector<int>& wanted, int num_threads, Stage* stage);

}  // namespace flashmoe::cli
