// A group whose ranks all live in this process.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "api/group_state.hpp"

namespace flashmoe {

/// The first rank that creates a layer chooses its heap; nobody waits for the others.
class LocalGroup final : public GroupState {
 public:
  LocalGroup(int num_ranks, const GroupOptions& options);

  CreatedLayer create_layer(int rank, const Problem& problem, const RankWeights& weights) override;

 private:
  /// A layer that some ranks have created and others have not.
  struct Pending {
    Problem problem;
    int first_rank = 0;
    std::shared_ptr<SharedHeap> heap;
    int num_users = 0;    ///< ranks that have created it or are about to
    int num_created = 0;
  };
  struct Rank {
    std::mutex creation;  // held for the whole of a creation, so that a rank's layers have an order
    std::uint64_t num_layers = 0;
  };

  std::shared_ptr<SharedHeap> enter(std::uint64_t layer_id, int rank, const Problem& problem);
  void leave(std::uint64_t layer_id, bool created);
  std::shared_ptr<SharedHeap> find_or_make_heap(const Problem& problem);

  std::vector<Rank> ranks_;
  std::mutex mutex_;  // of what follows
  std::map<std::uint64_t, Pending> pending_;  // by layer id
  std::vector<std::weak_ptr<SharedHeap>> heaps_;
};

}  // namespace flashmoe
