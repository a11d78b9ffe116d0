// What the ranks of a group know about each other's layers: which belong together, and on which heap.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "api/backend.hpp"
#include "flashmoe/group.hpp"
#include "flashmoe/problem.hpp"

namespace flashmoe {

class GroupState {
 public:
  virtual ~GroupState() = default;
  GroupState(const GroupState&) = delete;
  GroupState& operator=(const GroupState&) = delete;

  int num_ranks() const { return num_ranks_; }
  const GroupOptions& options() const { return options_; }
  const Backend& backend() const { return *backend_; }

  /// Throws InvalidArgument unless `rank` is one of the group's whose layers this process may create.
  virtual void require_rank(int rank) const;

  struct CreatedLayer {
    std::unique_ptr<RankLayer> layer;
    std::shared_ptr<SharedHeap> heap;
  };

  /// The rank's next layer, on the living heap of its geometry or a new one. Throws FabricError when `problem` is not
  /// what the others gave; a creation that throws leaves no trace. Thread-safe.
  virtual CreatedLayer create_layer(int rank, const Problem& problem, const RankWeights& weights) = 0;

 protected:
  /// Throws InvalidArgument for options out of range.
  GroupState(int num_ranks, const GroupOptions& options);

  int num_ranks_;
  GroupOptions options_;
  std::unique_ptr<Backend> backend_;  // an implementation's constructor makes it
};

/// Throws InvalidArgument, in one sentence, for options or a number of ranks out of range.
void check_options(int num_ranks, const GroupOptions& options);

/// Throws FabricError, naming the first field that differs, unless two ranks give layer `layer_id` the same problem.
void require_same(std::uint64_t layer_id, const Problem& a, int rank_a, const Problem& b, int rank_b);

}  // namespace flashmoe
