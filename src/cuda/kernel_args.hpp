// What the host hands the kernel, and what the kernel leaves behind.
#pragma once

#include <cstdint>

#include "actors/call.hpp"
#include "actors/step.hpp"
#include "actors/trace.hpp"
#include "cuda/trace_rows.hpp"
#include "flashmoe/views.hpp"

namespace flashmoe::cuda_backend {

/// Host-visible outcome of the rank's latest calls, in pinned memory; written by the last block out of each.
struct Outcome {
  std::uint64_t finished_epochs;   ///< calls that ended well
  std::uint64_t failed;            ///< 1 once a call gave up; `stall` is valid then
  Stall stall;                     ///< this rank's own record
  std::uint64_t deadline_ns;       ///< of the call that gave up
};

/// Device memory that the blocks of one rank share beside the actors' scratch.
struct KernelState {
  std::uint64_t blocks_out;        ///< blocks that have left the current call
  std::uint32_t giving_up;         ///< 1 once any actor of the rank has
  std::uint32_t lock;              ///< of `stall`
  Stall stall;                     ///< the wait that best explains why
  unsigned long long payload_bytes;   ///< sent to other ranks, over all calls
  unsigned long long overhead_bytes;
  unsigned long long shared_tasks;    ///< engine hopper: whose weights a pair of blocks loaded together, over all calls
  unsigned long long early_cuts;      ///< engine hopper: calls whose m-blocks were cut from ids
  unsigned long long opened_tasks;    ///< engine hopper: first tasks that blocks found from ids, see hopper/opening.cuh
};

/// How far one timeline got.
struct TraceCount {
  std::uint32_t num_records;
  std::uint32_t sm;
  std::uint64_t num_dropped;
};

/// Where a launch's timelines go, in device memory; a block's rows are those of trace_rows.hpp.
struct TraceTarget {
  TraceRecord* records = nullptr;  ///< [num_blocks][rows][capacity]; null: nothing is recorded
  TraceCount* counts = nullptr;    ///< [num_blocks][rows]
  std::uint32_t capacity = 0;
};

struct KernelArgs {
  Call call;                                     ///< epoch and num_tokens are read from device memory
  WeightsView weights;                           ///< this rank's experts
  const std::int64_t* num_tokens = nullptr;      ///< device memory, or null: call.num_tokens holds
  std::uint64_t deadline_ns = 0;
  int decode_rows = 0;                           ///< engine hopper: most rows of an m-block that runs as decode tiles for being small
  bool early_push = true;                        ///< engine hopper: consumers push rows of few tokens, if the gate is open
  bool early_cut = true;                         ///< engine hopper: consumers cut the m-blocks of few tokens before rows land
  KernelState* state = nullptr;                  ///< device memory
  Outcome* outcome = nullptr;                    ///< pinned host memory
  TraceTarget trace;
};

/// Warps of a portable block: processors first, then the warps that dispatch, combine, subscribe and schedule.
inline constexpr int kProcessorWarps = 8;
inline constexpr int kServiceWarps = 4;
inline constexpr int kBlockThreads = (kProcessorWarps + kServiceWarps) * 32;
inline constexpr TraceRows kTraceRows{.processor_rows = 1, .service_warps = kServiceWarps, .helpers = 0};

}  // namespace flashmoe::cuda_backend
