// A group of processes: this one's rank, and how it comes to the same layers and heaps as the others.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "api/group_state.hpp"
#include "fabric/bootstrap.hpp"

namespace flashmoe {

class ProcessGroup final : public GroupState {
 public:
  /// Returns when all ranks have come, as Group::join(). `make` gives the backend of this process's rank; what it throws
  /// is told to all.
  ProcessGroup(const ProcessRank& place, const GroupOptions& options,
               const std::function<std::unique_ptr<Backend>()>& make);

  void require_rank(int rank) const override;

  /// Collective. The ranks keep a heap when all of them still have it alive; it meets as "<group id>.<heap index>".
  CreatedLayer create_layer(int rank, const Problem& problem, const RankWeights& weights) override;

 private:
  /// What a rank brings to the creation of a layer.
  struct Wish {
    Problem problem;
    std::uint64_t heap_index;  // of its living heap for the problem, 0: none
  };
  struct KnownHeap {
    std::uint64_t index;
    std::weak_ptr<SharedHeap> heap;
  };
  struct FoundHeap {
    std::uint64_t index = 0;
    std::shared_ptr<SharedHeap> heap;  // null: none
  };

  FoundHeap find_heap(const Geometry& geometry);
  std::shared_ptr<SharedHeap> make_heap(const Geometry& geometry);
  void compare_versions();
  void compare_gpus();

  ProcessRank place_;
  fabric::Bootstrap meeting_;
  std::mutex mutex_;  // held for the whole of a creation
  std::uint64_t num_layers_ = 0;
  std::uint64_t num_heaps_ = 0;  // ever begun
  std::vector<KnownHeap> heaps_;
};

}  // namespace flashmoe
