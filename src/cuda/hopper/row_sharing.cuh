// A dispatcher whose block has consumers to help it, and, of rows that it shares (SharedRows), their side.
#pragma once

#include "cuda/hopper/block.cuh"

namespace flashmoe::cuda_backend::hopper {

/// A dispatcher that shares its rows with the consumers of its block, see Dispatcher::kShares, and leaves planning to them, see
/// Dispatcher::kHasHelp.
struct DispatcherWarp : WarpGroup {
  /// Asked for anew each time: a dispatcher has no register to keep it in.
  __device__ static SharedRows& rows() {
    SharedRows* rows = &block_memory().rows;
    asm volatile("" : "+l"(rows));
    return *rows;
  }
  __device__ void offer(std::int64_t first_token, bool goes, std::uint32_t first_slot, int peer, int ring_slot) const {
    rows().offer(*this, first_token, goes, first_slot, peer, ring_slot);
  }
  __device__ bool push_shared(const Call& call, const Fabric& fabric) const {
    return rows().push_next(*this, call, fabric);
  }
  __device__ void await_shared() const { rows().await(*this); }
  __device__ void end_sharing() const { rows().close(*this); }
  /// Whether the consumers have pushed all there is, in a call listed from ids: see early_push.cuh.
  __device__ static bool pushed_early() {
    BlockMemory& block = block_memory();
    block.pushed.wait(0);
    return block.pushed_early;
  }
  __device__ PlanState plan_state() const { return broadcast(leader() ? block_memory().plan_desk.state() : PlanState::awaited); }
  __device__ bool leaves_placing() const { return broadcast(leader() && block_memory().plan_desk.rely()); }
};

/// A consumer warp until the rows of a wave, mostly the first, are done, or the first task of its block is there.
__device__ inline void push_offered_rows(const Call& call, const Fabric& fabric, BlockMemory& block) {
  const bool several = call.num_tokens > call.roster.num_dispatchers;  // to push by one
  if (call.geometry().num_ranks == 1 || call.lined() || dispatcher_of(call) < 0 || !several) return;
  const WarpGroup group;
  constexpr unsigned kPauseNs = 100;
  while (!block.rows.closed(group) && !group.any(block.stored[0].test(0))) {
    if (!block.rows.push_next(group, call, fabric)) __nanosleep(kPauseNs);
  }
}

}  // namespace flashmoe::cuda_backend::hopper
