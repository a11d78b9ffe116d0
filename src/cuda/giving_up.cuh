// How a rank's blocks stop: every wait has a deadline, one record says why, the last block out tells the peers.
#pragma once

#include <cstdint>

#include "actors/stall.hpp"
#include "cuda/fabric.cuh"
#include "cuda/groups.cuh"
#include "cuda/instructions.cuh"
#include "cuda/kernel_args.hpp"

namespace flashmoe::cuda_backend {

/// Tells an idle actor when to stop: its deadline has passed, another actor of the rank or another rank gave up.
template <class Group>
class Watch {
 public:
  /// `pause_ns`: between idle steps of an actor of which there are many, so that their looks do not delay others.
  __device__ Watch(const KernelArgs& args, const Call& call, unsigned pause_ns = 0)
      : args_(args), call_(call), pause_ns_(pause_ns) {}

  __device__ void reset() { idle_steps_ = 0; }
  __device__ void pause(unsigned pause_ns) { pause_ns_ = pause_ns; }

  /// Collective. Looks at the clock and the abort words every few steps, and backs off between them.
  __device__ bool must_stop(const Group& group) {
    if (idle_steps_ == 0) idle_since_ = now_ns();
    if (pause_ns_ > 0) __nanosleep(pause_ns_);
    if (++idle_steps_ % kStepsPerLook != 0) return false;
    __nanosleep(20);
    bool stop = false;
    if (group.leader()) {
      stop = now_ns() - idle_since_ > args_.deadline_ns || observe<Scope::device>(&args_.state->giving_up) != 0;
    }
    if (group.index() < call_.geometry().num_ranks && idle_steps_ % (16 * kStepsPerLook) == 0) {
      stop = stop || observe<Scope::system>(call_.heap_at<std::uint64_t>(call_.heap.abort(group.index()))) != 0;
    }
    return group.any(stop);
  }

 private:
  static constexpr unsigned kStepsPerLook = 8;
  const KernelArgs& args_;
  const Call& call_;
  unsigned pause_ns_;
  std::uint64_t idle_since_ = 0;
  unsigned idle_steps_ = 0;
};

/// Keeps the best record of the rank. One thread. The lock needs no deadline: who holds it waits for nothing.
__device__ inline void record_stall(KernelState& state, const Stall& stall) {
  while (atomicCAS(&state.lock, 0u, 1u) != 0u) __nanosleep(100);
  __threadfence();
  if (observe<Scope::device>(&state.giving_up) == 0 || outranks(stall.wait, state.stall.wait)) state.stall = stall;
  publish(&state.giving_up, 1u);
  __threadfence();
  atomicExch(&state.lock, 0u);
}

template <class Group>
__device__ void give_up(const KernelArgs& args, const Call& call, const Group& group, Actor kind, Step step,
                        const Wait& wait) {
  // An actor that was not idle itself has nothing to explain.
  if (group.leader() && (step == Step::idle || step == Step::failed)) {
    record_stall(*args.state, {.rank = call.rank, .actor = kind, .wait = wait});
  }
}

/// Whether this launch runs actors: the rank has not given up before, and the token count in device memory is one that the
/// caller's tensors have. `gave_up`: see load_call(). Every thread of every block asks.
__device__ inline bool may_run(const KernelArgs& args, const Call& call, bool gave_up) {
  if (gave_up) return false;  // launched before the host knew; the counters are those of the epoch that was left
  if (call.num_tokens >= 0 && call.num_tokens <= args.call.num_tokens) return true;
  if (threadIdx.x == 0) {
    record_stall(*args.state, {.rank = call.rank,
                               .actor = Actor::dispatcher,
                               .wait = {.signal = SignalKind::wrong_count,
                                        .peer = call.rank,
                                        .expected = static_cast<std::uint64_t>(args.call.num_tokens),
                                        .seen = static_cast<std::uint64_t>(call.num_tokens)}});
  }
  return false;
}

/// What stays for the next epoch; see cpu::finish_epoch. One warp. `published`: by the task ring, the leader's.
__device__ inline void finish_epoch(const Call& call, std::uint64_t published) {
  const WarpGroup group;
  EpochState& state = call.epoch_state();
  for (int source = group.index(); source < call.geometry().num_ranks; source += group.size()) {
    if (!call.lined()) state.wave_sequence[source] += state.num_waves[source];
    *call.lined_ready(source) = 0;
    for (int block = 0; block < lined_slot_blocks(call.geometry()); ++block) call.lined_arrivals(source)[block] = 0;
  }
  auto* words = reinterpret_cast<std::uint64_t*>(&call.counters());
  for (unsigned word = static_cast<unsigned>(group.index()); word < sizeof(EpochCounters) / 8; word += 32) words[word] = 0;
  if (group.leader()) {
    state.epoch = call.epoch + 1;
    call.task_ring_state().begun = published;
    call.task_ring_state().next_take += call.given_tickets;
  }
}

/// The host reads the outcome while kernels may run: values first, then the word that says they count. One thread.
/// Stores, not atomic adds: pinned host memory takes none over PCIe.
__device__ inline void publish_to_host(std::uint64_t& word, std::uint64_t value) {
  cuda::atomic_ref<std::uint64_t, cuda::thread_scope_system>(word).store(value, cuda::memory_order_release);
}
/// The same for a word that speaks of no other values.
__device__ inline void tell_host(std::uint64_t& word, std::uint64_t value) {
  cuda::atomic_ref<std::uint64_t, cuda::thread_scope_system>(word).store(value, cuda::memory_order_relaxed);
}
__device__ inline void publish_failure(Outcome& outcome, const Stall& stall, std::uint64_t deadline_ns) {
  outcome.stall = stall;
  outcome.deadline_ns = deadline_ns;
  publish_to_host(outcome.failed, 1);
}

/// Every block ends here. The last one out advances the epoch, or tells every rank that this one gave up.
__device__ inline void leave(const KernelArgs& args, const Call& call, const Fabric& fabric, const Traffic& traffic) {
  if (threadIdx.x >= 32) return;
  const WarpGroup group;
  KernelState& state = *args.state;
  bool last = false;
  if (group.leader()) {
    if (traffic.payload_bytes > 0) atomicAdd(&state.payload_bytes, traffic.payload_bytes);
    if (traffic.overhead_bytes > 0) atomicAdd(&state.overhead_bytes, traffic.overhead_bytes);
    last = join(&state.blocks_out, std::uint64_t{1}) + 1 == gridDim.x;
  }
  if (!group.broadcast(last)) return;
  group.sync();  // what the leader has acquired holds for all lanes
  const std::uint32_t giving_up = peek(&state.giving_up);  // read side by side: the call waits for nothing else
  const std::uint64_t published = peek(&call.task_ring_state().published);
  if (group.leader()) state.blocks_out = 0;
  if (group.broadcast(giving_up) == 0) {
    finish_epoch(call, published);
    if (group.leader()) tell_host(args.outcome->finished_epochs, call.epoch + 1);
    return;
  }
  if (observe<Scope::system>(&args.outcome->failed) != 0) return;  // everybody was told by a launch before
  std::uint64_t words[kStallWords];
  encode(state.stall, words);
  for (int peer = 0; peer < call.geometry().num_ranks; ++peer) {
    fabric.put_lines(group, peer, call.heap.stall_record(call.rank), words, kStallWords,
                     line_tag(call.generation, call.epoch));
  }
  __threadfence_system();
  group.sync();
  for (int peer = group.index(); peer < call.geometry().num_ranks; peer += group.size()) {
    fabric.signal(peer, call.heap.abort(call.rank), 1);
  }
  if (group.leader()) publish_failure(*args.outcome, state.stall, args.deadline_ns);
}

}  // namespace flashmoe::cuda_backend
