// Rows that a dispatcher pushes together with the consumers of its block while those wait for their first task: one warp has
// too few bytes under way, least of all beside weights that stream. Whoever is there takes the next row; nobody waits for help.
#pragma once

#include <cstdint>

#include "actors/call.hpp"
#include "cuda/fabric.cuh"
#include "cuda/groups.cuh"

namespace flashmoe::cuda_backend::hopper {

/// Up to 32 tokens, of which some go to a peer, into slots that follow each other. In shared memory; the block's one dispatcher
/// offers, any warp of the block takes. All words are accessed by atomics, one lane a warp; fences of the block order what they
/// stand for.
class SharedRows {
 public:
  /// One thread of the block, before any other call.
  __device__ void init() { takes_ = 0; }

  /// Those tokens of the call from `first_token` on whose lane `goes`, into slots of `peer` from `first_slot` on. Collective;
  /// the rows offered before are done. Memory ordering: release.
  __device__ void offer(const WarpGroup& group, std::int64_t first_token, bool goes, std::uint32_t first_slot, int peer,
                        int ring_slot) {
    const unsigned tokens = __ballot_sync(WarpGroup::kAll, goes);
    if (group.leader()) {
      atomicExch(&tokens_, tokens);
      atomicExch(&first_token_, static_cast<unsigned>(first_token));
      atomicExch(&first_slot_, first_slot);
      atomicExch(&place_, static_cast<unsigned>(peer) << 16 | static_cast<unsigned>(ring_slot));
      atomicExch(&done_, 0);
      __threadfence_block();
      atomicExch(&takes_, static_cast<unsigned>(__popc(tokens)) << 16);
    }
    group.sync();
  }

  /// All rows of the wave are done. Collective.
  __device__ void close(const WarpGroup& group) {
    if (group.leader()) atomicExch(&takes_, kClosed);
  }
  /// Whether they are, and none of another wave have been offered. Collective.
  __device__ bool closed(const WarpGroup& group) {
    const unsigned takes = group.broadcast(group.leader() ? read(takes_) : 0);
    return takes >> 16 == 0 && (takes & kClosed) != 0;
  }

  /// Collective: pushes the next row that nobody has taken; false when there is none. Memory ordering: acquire, and release
  /// towards await().
  __device__ bool push_next(const WarpGroup& group, const Call& call, const Fabric& fabric) {
    const std::int64_t bytes = call.geometry().row_bytes();
    Copy copy;
    if (group.leader()) copy = take(call, fabric, bytes);
    copy = group.broadcast(copy);
    if (copy.to == nullptr) return false;
    Fabric::copy_row(group, copy.to, copy.from, bytes);
    group.sync();
    if (group.leader()) {
      __threadfence_block();
      atomicAdd(&done_, 1);
    }
    return true;
  }

  /// Collective, once push_next() has found no row: waits for rows that others are storing at this moment.
  __device__ void await(const WarpGroup& group) {
    if (group.leader()) {
      const unsigned total = read(takes_) >> 16;
      while (read(done_) < total) {
      }
      __threadfence_block();
    }
    group.sync();
  }

 private:
  /// Of takes_: none offered, more takes than there ever are. A late take adds to it and changes nothing.
  static constexpr unsigned kClosed = 1u << 15;
  static_assert(Limits::num_ranks < 1 << 16 && Limits::wave_ring < 1 << 16);

  struct Copy {
    const char* from = nullptr;
    char* to = nullptr;
  };

  __device__ static unsigned read(unsigned& word) { return atomicAdd(&word, 0); }
  /// Whether what was read from takes_ is the number of a row.
  __device__ static bool is_row(unsigned takes) { return (takes & 0xffffu) < takes >> 16; }

  /// The next row, if there is one. One thread.
  __device__ Copy take(const Call& call, const Fabric& fabric, std::int64_t bytes) {
    if (!is_row(read(takes_))) return {};
    const unsigned takes = atomicAdd(&takes_, 1);
    if (!is_row(takes)) return {};
    __threadfence_block();  // from here to done_ no other rows are offered
    const unsigned row = takes & 0xffffu;
    unsigned tokens = read(tokens_);
    for (unsigned before = 0; before < row; ++before) tokens &= tokens - 1;
    const std::int64_t token = std::int64_t{read(first_token_)} + __ffs(static_cast<int>(tokens)) - 1;
    const unsigned place = read(place_);
    const auto peer = static_cast<int>(place >> 16);
    fabric.count_row(peer, bytes);
    return {call.x_row(token), fabric.address(peer, call.heap.token_row(call.rank, static_cast<int>(place & 0xffffu),
                                                                        read(first_slot_) + row))};
  }

  unsigned takes_;        ///< rows offered in the upper half, how often one was taken in the lower
  unsigned done_;         ///< rows stored
  unsigned tokens_;       ///< bit i: token first_token_ + i goes
  unsigned first_token_;
  unsigned first_slot_;
  unsigned place_;        ///< peer in the upper half, ring slot in the lower
};

}  // namespace flashmoe::cuda_backend::hopper
