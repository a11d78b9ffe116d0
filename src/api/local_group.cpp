#include "api/local_group.hpp"

#include <utility>

namespace flashmoe {

LocalGroup::LocalGroup(int num_ranks, const GroupOptions& options) : GroupState(num_ranks, options) {
  backend_ = make_backend(options);
  ranks_ = std::vector<Rank>(static_cast<std::size_t>(num_ranks));
}

GroupState::CreatedLayer LocalGroup::create_layer(int rank, const Problem& problem, const RankWeights& weights) {
  Rank& own = ranks_[static_cast<std::size_t>(rank)];
  const std::lock_guard lock(own.creation);
  const std::uint64_t layer_id = own.num_layers + 1;
  std::shared_ptr<SharedHeap> heap = enter(layer_id, rank, problem);
  try {
    std::unique_ptr<RankLayer> layer = heap->make_layer(rank, problem, weights, layer_id);
    leave(layer_id, true);
    ++own.num_layers;
    return {std::move(layer), std::move(heap)};
  } catch (...) {
    leave(layer_id, false);
    throw;
  }
}

std::shared_ptr<SharedHeap> LocalGroup::enter(std::uint64_t layer_id, int rank, const Problem& problem) {
  const std::lock_guard lock(mutex_);
  const auto found = pending_.find(layer_id);
  if (found == pending_.end()) {
    Pending pending{.problem = problem, .first_rank = rank, .heap = find_or_make_heap(problem), .num_users = 1};
    return pending_.emplace(layer_id, std::move(pending)).first->second.heap;
  }
  Pending& pending = found->second;
  require_same(layer_id, pending.problem, pending.first_rank, problem, rank);
  ++pending.num_users;
  return pending.heap;
}

void LocalGroup::leave(std::uint64_t layer_id, bool created) {
  const std::lock_guard lock(mutex_);
  Pending& pending = pending_.at(layer_id);
  if (created) {
    ++pending.num_created;
  } else {
    --pending.num_users;
  }
  if (pending.num_users == 0 || pending.num_created == num_ranks()) pending_.erase(layer_id);
}

std::shared_ptr<SharedHeap> LocalGroup::find_or_make_heap(const Problem& problem) {
  const Geometry geometry = plan_geometry(problem, backend_->engine_traits(problem));
  std::erase_if(heaps_, [](const auto& heap) { return heap.expired(); });
  for (const auto& weak : heaps_) {
    std::shared_ptr<SharedHeap> heap = weak.lock();
    if (heap && heap->layout().geometry == geometry && !heap->dead()) return heap;
  }
  std::shared_ptr<SharedHeap> heap = backend_->make_heap(geometry, nullptr);
  heaps_.push_back(heap);
  return heap;
}

}  // namespace flashmoe
