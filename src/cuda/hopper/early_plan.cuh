// The first wave of a call (counted form) planned by the consumers of every planner's block, which have no task yet: 256 threads
// instead of a warp, and at once, while the dispatcher passes the gate. What comes out is the same. The dispatcher tells the others
// that its chunk is counted, once it is and the gate has opened; the consumers, that it is placed.
#pragma once

#include <cstdint>

#include "actors/call.hpp"
#include "actors/chunk_planner.hpp"
#include "actors/signal.hpp"
#include "cuda/hopper/block.cuh"
#include "cuda/hopper/consumer_group.cuh"

namespace flashmoe::cuda_backend::hopper {

class EarlyPlan {
 public:
  /// Whether the block has a dispatcher which, if its chunk is not empty, asks whether the consumers plan it.
  __device__ static bool applies(const Call& call) {
    const int planner = dispatcher_of(call);
    return planner >= 0 && planner < call.num_planners() && call.num_tokens > 0 && !call.listed_from_ids(call.num_tokens);
  }

  __device__ EarlyPlan(const Call& call, BlockMemory& block)
      : call_(call), block_(block), thread_(fresh_thread_index() - kFirstConsumer * 32),
        ring_slot_(call.ring_slot(call.epoch_state().wave_sequence[call.rank])) {}

  /// All consumers of the block.
  __device__ void run() const {
    const ChunkPlanner<ConsumerGroup> planner(call_, 0, ring_slot_, cut_wave(call_.wave_size(0), call_.num_planners()),
                                              dispatcher_of(call_));
    const int num_experts = call_.geometry().num_experts();
    const bool few = num_experts <= ConsumerGroup::kMostKeys;
    if (!few || planner.empty()) return leave();
    const ConsumerGroup group(block_, thread_, num_experts);
    if (!planner.count(group)) return leave();  // the dispatcher finds the wrong id once more, and says which it is
    if (group.leader()) block_.plan_desk.tell_counted();
    if (!all_are_counted()) return;
    planner.place(group);
    if (group.leader()) join(&call_.counters().placed[ring_slot_], std::uint64_t{1});
    if (thread_ % 128 == 0) block_.logs[kFirstConsumerRow + thread_ / 128].worked();
  }

 private:
  __device__ void leave() const {
    if (thread_ == 0) block_.plan_desk.leave();
  }

  /// Waits until all chunks of the wave are. False where a task has come before, if the dispatcher does not rely on this one to be
  /// placed: other ranks' rows may be there while one is late, whose gate is closed; and who gives up sends an exit.
  __device__ bool all_are_counted() const {
    const auto planners = static_cast<std::uint64_t>(call_.num_planners());
    while (true) {
      bool counted = false;
      bool left = false;
      if (thread_ == 0) {
        counted = observe<Scope::device>(&call_.counters().planned[ring_slot_]) >= planners;
        left = !counted && block_.filled[0].test(0) && block_.plan_desk.leave_placing();
      }
      WarpGroup::sync();
      if (any_consumer(counted)) return true;
      if (any_consumer(left)) return false;
    }
  }

  const Call& call_;
  BlockMemory& block_;
  int thread_;
  int ring_slot_;
};

}  // namespace flashmoe::cuda_backend::hopper
