#include "io/expert_cache.hpp"

#include <algorithm>

namespace flashmoe {

ExpertCache::ExpertCache(int num_experts, std::size_t expert_bytes, std::size_t budget_bytes)
    : capacity_(budget_bytes / std::max<std::size_t>(expert_bytes, 1)), slots_(static_cast<std::size_t>(num_experts)) {}

ExpertCache::Handle ExpertCache::get(int expert_index, const std::function<Handle()>& make) {
  Slot& slot = slots_[expert_index];
  const std::lock_guard lock(slot.making);
  Handle handle = slot.alive.lock();
  if (!handle) slot.alive = handle = make();
  keep(expert_index, handle);
  return handle;
}

void ExpertCache::keep(int expert_index, const Handle& handle) {
  if (capacity_ == 0) return;
  Handle dropped;  // freed after the lock is
  const std::lock_guard lock(recent_mutex_);
  const auto found = std::find_if(recent_.begin(), recent_.end(),
                                  [&](const auto& entry) { return entry.first == expert_index; });
  if (found != recent_.end()) {
    recent_.splice(recent_.begin(), recent_, found);
    return;
  }
  recent_.emplace_front(expert_index, handle);
  if (recent_.size() <= capacity_) return;
  dropped = std::move(recent_.back().second);
  recent_.pop_back();
}

}  // namespace flashmoe
