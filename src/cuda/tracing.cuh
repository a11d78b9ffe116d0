// Timelines of a block's actors. Their latest spans and counts lie in shared memory, so that idle steps, which make one
// wait of any length, write nowhere else and nothing is kept in registers; closed spans go to the launch's TraceTarget.
#pragma once

#include <cstdint>

#include "actors/trace.hpp"
#include "cuda/instructions.cuh"
#include "cuda/kernel_args.hpp"
#include "cuda/trace_rows.hpp"

namespace flashmoe::cuda_backend {

/// One timeline, without a gap: a span begins where the one before ended. One thread writes it.
class TraceLog {
 public:
  __device__ void begin(const TraceTarget& target, int row) {
    buffer_ = TraceBuffer(target.records == nullptr ? nullptr : target.records + std::int64_t{row} * target.capacity,
                          target.records == nullptr ? 0 : target.capacity);
    since_ns_ = on() ? now_ns() : 0;
  }

  /// For places that do not see the launch's arguments.
  __device__ bool on() const { return buffer_.capacity() > 0; }

  __device__ void add(TraceRecord record) {
    record.begin_ns = since_ns_;
    record.end_ns = since_ns_ = now_ns();
    buffer_.add(record);
  }
  __device__ void restart() { since_ns_ = now_ns(); }
  /// What was done since then is another timeline's.
  __device__ void continue_after(const TraceLog& other) { since_ns_ = other.since_ns_; }
  __device__ void waited(SignalKind signal, int peer) {
    if (on()) add(describe_wait(signal, peer));
  }
  __device__ void ran(const Task& task) {
    if (on()) add(describe_task(task));
  }
  __device__ void worked() {
    if (on()) add({});
  }

  __device__ TraceCount finish() {
    buffer_.finish();
    return {.num_records = buffer_.num_records(), .sm = 0, .num_dropped = buffer_.num_dropped()};
  }

 private:
  TraceBuffer buffer_;
  std::uint64_t since_ns_;
};

/// The block's log of the calling warp's actor: number `warp + offset`.
struct WarpLog {
  TraceLog* logs;
  int offset;
  __device__ TraceLog& get() const { return logs[fresh_thread_index() / 32 + offset]; }
  /// What the warp has done so far is another timeline's.
  __device__ void restart(const KernelArgs& args) const {
    if (args.trace.records != nullptr && fresh_thread_index() % 32 == 0) get().restart();
  }
  __device__ void continue_after(const KernelArgs& args, const WarpLog& other) const {
    if (args.trace.records != nullptr && fresh_thread_index() % 32 == 0) get().continue_after(other.get());
  }
};

/// After a step of an actor.
template <class Group, class ActorT>
__device__ void trace_step(const KernelArgs& args, const Group& group, const WarpLog& own, Step step,
                           const ActorT& actor) {
  if (args.trace.records == nullptr || !group.leader()) return;
  TraceLog& log = own.get();
  if constexpr (requires { actor.ran(); }) {
    log.add(describe_step(step, actor.wait(), actor.ran()));
  } else {
    log.add(describe_step(step, actor.wait(), nullptr));
  }
}

/// Before the block's roles begin, by all threads; a barrier follows.
template <int num_rows>
__device__ void begin_trace(const KernelArgs& args, TraceLog (&logs)[num_rows]) {
  const int row = static_cast<int>(threadIdx.x);
  if (row < num_rows) logs[row].begin(args.trace, static_cast<int>(blockIdx.x) * num_rows + row);
}

/// After a barrier that follows on all roles.
template <int num_rows>
__device__ void end_trace(const KernelArgs& args, TraceLog (&logs)[num_rows]) {
  static_assert(num_rows <= 32);
  const int row = static_cast<int>(threadIdx.x);
  if (args.trace.records == nullptr || row >= num_rows) return;
  TraceCount count = logs[row].finish();
  count.sm = multiprocessor();
  args.trace.counts[static_cast<int>(blockIdx.x) * num_rows + row] = count;
}

}  // namespace flashmoe::cuda_backend
