// Rows that a dispatcher pushes together with the consumers of its block while those wait for their first task: one warp has
// too few bytes under way, least of all beside weights that stream. Whoever is there takes the next row; nobody waits for help.
#pragma once

#include <cstdint>

#include "actors/call.hpp"
#include "cuda/fabric.cuh"
#include "cuda/groups.cuh"

namespace flashmoe::cuda_backend::hopper {

/// Up to 32 tokens, of which some go to a peer, into slots that follow each other. In shared memory; one dispatcher offers,
/// any warp of the block takes. All words are accessed by atomics, one lane a warp; fences of the block order what they stand
/// for.
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
      atomicExch(&what_, tokens | static_cast<Word>(first_slot) << 32);
      atomicExch(&where_, static_cast<Word>(first_token) | static_cast<Word>(peer) << kPeerBit |
                              static_cast<Word>(ring_slot) << kRingSlotBit);
      atomicExch(&done_, 0);
      __threadfence_block();
      atomicExch(&takes_, static_cast<Word>(__popc(tokens)) << 32);
    }
    group.sync();
  }

  /// No more rows will be offered before the block's first task. Collective.
  __device__ void close(const WarpGroup& group) {
    if (group.leader()) atomicExch(&takes_, kClosed);
  }
  __device__ bool closed(const WarpGroup& group) { return group.broadcast(group.leader() && read(takes_) == kClosed); }

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
      const Word total = read(takes_) >> 32;
      while (read(done_) < total) {
      }
      __threadfence_block();
    }
    group.sync();
  }

 private:
  using Word = unsigned long long;
  static constexpr int kPeerBit = 40;  // of where_
  static constexpr int kRingSlotBit = 52;
  static constexpr Word kTokenMask = (Word{1} << kPeerBit) - 1;
  static constexpr Word kClosed = ~Word{0};  ///< of takes_; no row has this number

  struct Copy {
    const char* from = nullptr;
    char* to = nullptr;
  };

  __device__ static Word read(Word& word) { return atomicAdd(&word, 0); }
  /// Whether what was read from takes_ is the number of a row.
  __device__ static bool is_row(Word taken) { return (taken & 0xffffffffull) < taken >> 32; }

  /// The next row, if there is one. One thread.
  __device__ Copy take(const Call& call, const Fabric& fabric, std::int64_t bytes) {
    if (!is_row(read(takes_))) return {};
    const Word taken = atomicAdd(&takes_, 1);
    if (!is_row(taken)) return {};
    __threadfence_block();  // from here to done_ no other rows are offered
    const Word what = read(what_);
    const Word where = read(where_);
    const auto row = static_cast<std::uint32_t>(taken);
    auto tokens = static_cast<unsigned>(what);
    for (std::uint32_t before = 0; before < row; ++before) tokens &= tokens - 1;
    const auto token = static_cast<std::int64_t>(where & kTokenMask) + __ffs(static_cast<int>(tokens)) - 1;
    const auto peer = static_cast<int>(where >> kPeerBit & 0xfff);
    const auto ring_slot = static_cast<int>(where >> kRingSlotBit);
    fabric.count_row(peer, bytes);
    return {call.x_row(token),
            fabric.address(peer, call.heap.token_row(call.rank, ring_slot, static_cast<std::uint32_t>(what >> 32) + row))};
  }

  Word takes_;  ///< rows offered in the upper half, how often one was taken in the lower
  Word done_;   ///< rows stored
  Word what_;   ///< first slot, and a bit for each of 32 tokens
  Word where_;  ///< ring slot, peer, first token
};

}  // namespace flashmoe::cuda_backend::hopper
