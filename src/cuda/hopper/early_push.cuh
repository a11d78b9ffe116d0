// What a dispatcher sends in a call listed from ids (Call::listed_from_ids), sent by the consumers of its block, which have no
// task yet: they are eight warps, and come to it sooner than one that has every other form of a call to tell apart. Nothing here
// waits for other ranks: where the gate is closed, all is left to the dispatcher.
#pragma once

#include <cstdint>

#include "actors/call.hpp"
#include "actors/id_lines.hpp"
#include "actors/route_plan.hpp"
#include "actors/signal.hpp"
#include "cuda/fabric.cuh"
#include "cuda/groups.cuh"
#include "cuda/hopper/block.cuh"

namespace flashmoe::cuda_backend::hopper {

class EarlyPush {
 public:
  /// Whether the block has a dispatcher, and its consumers push for it.
  __device__ static bool applies(const Call& call) {
    return dispatcher_of(call) >= 0 && call.geometry().num_ranks > 1 && !call.lined() && call.listed_from_ids(call.num_tokens);
  }

  /// `warp`: of the consumer warps.
  __device__ EarlyPush(const Call& call, const Fabric& fabric, BlockMemory& block, int warp)
      : call_(call), fabric_(fabric), block_(block), warp_(warp),
        tokens_(share_of(call.num_tokens, call.roster.num_dispatchers, dispatcher_of(call))) {}

  /// All consumers of the block: sends its share of the ids, pushes its rows and signals them. False where they do not: the gate
  /// is closed, or `wanted` says so.
  __device__ bool run(bool wanted) {
    const std::uint64_t sequence = call_.epoch_state().wave_sequence[call_.rank];
    bool closed = false;
    if (warp_ == kConsumerWarps - 1) {  // ids before any rows, which they would queue behind
      closed = !wanted || !gate_is_open(sequence);
      if (!WarpGroup::any(closed)) {
        send_ids(WarpGroup{}, fabric_, call_, dispatcher_of(call_), sequence,
                 reinterpret_cast<std::uint64_t*>(block_.staging[warp_]), kStagingBytes / sizeof(Line::data));
      }
    } else {
      count_slots();
    }
    const bool opened = !any_consumer(closed);
    if (opened) push_rows(call_.ring_slot(sequence));
    if (warp_ == 0) block_.pushed_early = opened;
    block_.pushed.arrive();
    return opened;
  }

 private:
  /// Each warp but the last counts a part of the tokens before this block's. Several tokens a thread are under way at once.
  __device__ void count_slots() const {
    constexpr int kTokens = 4;
    const Geometry& g = call_.geometry();
    const TokenRange part = share_of(tokens_.begin, kConsumerWarps - 1, warp_);
    for (int offset = 1; offset < g.num_ranks; ++offset) {
      const int peer = call_.peer_at(offset);
      std::uint32_t tokens = 0;
#pragma unroll 1
      for (std::int64_t base = part.begin + WarpGroup::index(); base < part.end; base += kTokens * WarpGroup::size()) {
        bool go[kTokens] = {};
#pragma unroll 1
        for (int choice = 0; choice < g.top_k; choice += kIdsAhead) {
#pragma unroll
          for (int i = 0; i < kTokens; ++i) {
            const std::int64_t token = base + i * WarpGroup::size();
#pragma unroll
            for (int k = choice; k < choice + kIdsAhead; ++k) {
              const std::int32_t id = token < part.end && k < g.top_k ? call_.topk_ids[token * g.top_k + k] : -1;
              go[i] |= is_at(g, id, peer);
            }
          }
        }
#pragma unroll
        for (const bool goes : go) tokens += goes ? 1u : 0u;
      }
      tokens = WarpGroup::sum(tokens);
      if (WarpGroup::leader()) atomicAdd(&block_.slots_before[peer], tokens);
    }
  }

  /// See Dispatcher::pass_gate(): the wave is the call's only one.
  __device__ bool gate_is_open(std::uint64_t sequence) const {
    const int num_ranks = call_.geometry().num_ranks;
    const int ring_slot = call_.ring_slot(sequence);
    bool open = true;
    for (int peer = WarpGroup::index(); peer < num_ranks; peer += WarpGroup::size()) {
      const auto seen = observe<Scope::system>(call_.heap_at<std::uint64_t>(call_.heap.consumed(peer, ring_slot)));
      open = open && call_.has_retired(seen, sequence);
    }
    return open;
  }

  /// Warp w has every eighth of the tokens.
  __device__ void push_rows(int ring_slot) const {
    const Geometry& g = call_.geometry();
    for (int offset = 1; offset < g.num_ranks; ++offset) {
      const int peer = call_.peer_at(offset);
      std::uint32_t slot = block_.slots_before[peer];
      for (std::int64_t base = tokens_.begin; base < tokens_.end; base += WarpGroup::size()) {
        const std::int64_t token = base + WarpGroup::index();
        const bool goes = token < tokens_.end && goes_to(g, call_.topk_ids + token * g.top_k, peer);
        const unsigned all = __ballot_sync(WarpGroup::kAll, goes);
        const unsigned own = all & (0x01010101u << warp_);
        for (unsigned rest = own; rest != 0; rest &= rest - 1) {
          const int at = __ffs(static_cast<int>(rest)) - 1;
          fabric_.put_row(WarpGroup{}, peer, call_.heap.token_row(call_.rank, ring_slot, slot_of(at, all, slot)),
                          call_.x_row(base + at), g.row_bytes());
        }
        signal_rows(peer, ring_slot, own, all, slot);
        slot += static_cast<std::uint32_t>(__popc(all));
      }
    }
  }

  /// Of token `at` of 32, of which `all` have slots from `first` on.
  __device__ static std::uint32_t slot_of(int at, unsigned all, std::uint32_t first) {
    return first + static_cast<std::uint32_t>(__popc(all & ((1u << at) - 1u)));
  }

  /// Tells the peer how many of `own` tokens lie in each of its slot blocks.
  __device__ void signal_rows(int peer, int ring_slot, unsigned own, unsigned all, std::uint32_t first) const {
    if (own == 0) return;
    const auto block_slots = static_cast<std::uint32_t>(call_.geometry().slot_block);
    WarpGroup::sync();
    for (unsigned rest = own; rest != 0;) {
      const std::uint32_t block = slot_of(__ffs(static_cast<int>(rest)) - 1, all, first) / block_slots;
      const bool mine = (rest >> WarpGroup::index() & 1u) != 0 && slot_of(WarpGroup::index(), all, first) / block_slots == block;
      const unsigned rows = __ballot_sync(WarpGroup::kAll, mine);
      if (WarpGroup::leader()) {
        fabric_.signal(peer, call_.heap.arrival(call_.rank, ring_slot, static_cast<int>(block)),
                       static_cast<std::uint64_t>(__popc(rows)));
      }
      rest &= ~rows;
    }
  }

  const Call& call_;
  const Fabric& fabric_;
  BlockMemory& block_;
  int warp_;
  TokenRange tokens_;  ///< of this block
};

}  // namespace flashmoe::cuda_backend::hopper
