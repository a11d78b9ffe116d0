// What the ranks of a group know about each other's layers: which belong together, and on which heap.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "api/backend.hpp"
#include "flashmoe/group.hpp"
#include "flashmoe/problem.hpp"

namespace flashmoe {

class GroupState {
 public:
  GroupState(int num_ranks, const GroupOptions& options);

  int num_ranks() const { return static_cast<int>(ranks_.size()); }
  const GroupOptions& options() const { return options_; }
  const Backend& backend() const { return *backend_; }

  struct CreatedLayer {
    std::unique_ptr<RankLayer> layer;
    std::shared_ptr<SharedHeap> heap;
  };

  /// The rank's next layer. The first rank to come chooses the heap: the living one of its geometry, or a new one.
  /// Throws FabricError when `problem` is not what that rank gave; a creation that throws leaves no trace.
  CreatedLayer create_layer(int rank, const Problem& problem, const RankWeights& weights);

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

  GroupOptions options_;
  std::unique_ptr<Backend> backend_;
  std::vector<Rank> ranks_;
  std::mutex mutex_;  // of what follows
  std::map<std::uint64_t, Pending> pending_;  // by layer id
  std::vector<std::weak_ptr<SharedHeap>> heaps_;
};

/// "hidden is 64 on rank 0 and 128 on rank 1" for the first field in which they differ.
std::string describe_difference(const Problem& a, int rank_a, const Problem& b, int rank_b);

}  // namespace flashmoe
