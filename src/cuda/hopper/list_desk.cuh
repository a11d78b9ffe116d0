// Between a subscriber and the consumers of its block, which have no task yet: of which sources it wants lists made from ids, and
// which of them are made. Nobody waits for help: a list that the consumers leave, because their first task has come, the
// subscriber makes itself.
#pragma once

#include "actors/subscriber.hpp"
#include "cuda/groups.cuh"

namespace flashmoe::cuda_backend::hopper {

/// In shared memory. All words are accessed by atomics; fences of the block order what they stand for. `position`: of a source
/// among those of the subscriber.
class ListDesk {
 public:
  static constexpr int kMostSources = 31;  ///< lists of further ones the subscriber makes

  /// One thread of the block, before any other call.
  __device__ void init() {
    state_ = 0;
    for (unsigned& tokens : tokens_) tokens = 0;
  }

  /// The source has this many tokens, and wants a list. One thread.
  __device__ void ask(int position, std::int64_t num_tokens) {
    if (position < kMostSources) atomicExch(&tokens_[position], static_cast<unsigned>(num_tokens));
  }
  /// What was asked; 0: nothing yet. Collective.
  __device__ std::int64_t num_tokens(const WarpGroup& group, int position) {
    return group.broadcast(group.leader() ? atomicAdd(&tokens_[position], 0) : 0u);
  }

  /// The list is made, and so is whatever the calling thread has seen of other threads' work. One thread. Memory ordering: release.
  __device__ void tell_made(int position) {
    __threadfence_block();
    atomicOr(&state_, 1u << position);
  }
  /// No further ones will be. One thread.
  __device__ void leave() { atomicOr(&state_, kLeft); }

  /// Memory ordering: acquire.
  __device__ ListState state(int position) {
    const unsigned state = atomicAdd(&state_, 0);
    __threadfence_block();
    if (position < kMostSources && (state >> position & 1u) != 0) return ListState::made;
    return position >= kMostSources || (state & kLeft) != 0 ? ListState::left : ListState::awaited;
  }

 private:
  static constexpr unsigned kLeft = 1u << kMostSources;

  unsigned state_;  ///< bit i: the list of source i is made
  unsigned tokens_[kMostSources];
};

/// A subscriber that has such a desk.
struct SubscriberWarp : WarpGroup {
  ListDesk* desk;
  __device__ void ask_for_list(int position, std::int64_t num_tokens) const { desk->ask(position, num_tokens); }
  __device__ ListState list_state(int position) const {
    return broadcast(leader() ? desk->state(position) : ListState::awaited);
  }
};

}  // namespace flashmoe::cuda_backend::hopper
