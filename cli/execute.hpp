// One call of the layer on all ranks.
#pragma once

#include <memory>
#include <vector>

#include "batch.hpp"
#include "core/expert_source.hpp"
#include "flashmoe/group.hpp"
#include "flashmoe/layer.hpp"

namespace flashmoe::cli {

/// Runs every rank on a thread of its own; results are in batch.y. Returns the ranks' stats.
/// When ranks fail, throws what says most: a rank's own fault rather than what the others saw of it.
std::vector<CallStats> execute(const Group& group, const std::shared_ptr<const ExpertSource>& experts, Batch& batch);

}  // namespace flashmoe::cli
