// Recently used experts of a source that makes them on demand, within a budget of bytes.
#pragma once

#include <cstddef>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <vector>

#include "core/expert_source.hpp"

namespace flashmoe {

class ExpertCache {
 public:
  using Handle = std::shared_ptr<const ExpertParameters>;

  /// Keeps the most recently used experts, as many as fit in `budget_bytes` at `expert_bytes` each (maybe none).
  ExpertCache(int num_experts, std::size_t expert_bytes, std::size_t budget_bytes);

  /// The expert's handle: a kept one, one that somebody still holds, or what `make` returns. Experts that are in use
  /// count against the budget only as long as they are among the recently used ones.
  /// Thread-safe; an expert is made by one thread at a time, different experts at the same time. What `make` throws
  /// passes through and leaves the cache as it was.
  Handle get(int expert_index, const std::function<Handle()>& make);

 private:
  struct Slot {
    std::mutex making;
    std::weak_ptr<const ExpertParameters> alive;
  };

  void keep(int expert_index, const Handle& handle);

  const std::size_t capacity_;
  std::vector<Slot> slots_;  // [num_experts]
  std::mutex recent_mutex_;
  std::list<std::pair<int, Handle>> recent_;  // most recent first
};

}  // namespace flashmoe
