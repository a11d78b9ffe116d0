// Work of all ranks at once, and one call of the layer on all of them.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <vector>

#include "batch.hpp"
#include "core/expert_source.hpp"
#include "flashmoe/group.hpp"
#include "flashmoe/layer.hpp"

namespace flashmoe::cli {

/// Calls `work` with each of `ranks` on a thread of its own and waits for all. When ranks fail, throws what says most: a
/// rank's own fault rather than what the others saw of it.
void on_every_rank(const std::vector<int>& ranks, const std::function<void(int)>& work);

/// Runs every rank of `ranks`, those of this process, on a thread of its own; their results are in batch.y. Returns the
/// stats by rank, [num_ranks]. Throws as on_every_rank().
std::vector<CallStats> execute(const Group& group, const std::shared_ptr<const ExpertSource>& experts, Batch& batch,
                               const std::vector<int>& ranks);

/// Whether an error only tells that some other rank is in trouble.
bool is_second_hand(const std::exception_ptr& error);

}  // namespace flashmoe::cli
