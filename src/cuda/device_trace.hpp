// The timelines of one rank's launches, from the kernel's memory to the host.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "actors/rank_trace.hpp"
#include "cuda/layer.hpp"
#include "cuda/memory.hpp"

namespace flashmoe::cuda_backend {

class DeviceTrace {
 public:
  /// Room for `capacity` records of each timeline. Not while a kernel may be waiting for this rank.
  DeviceTrace(const RankContext& context, std::size_t capacity);

  /// For the launches that are recorded, one at a time.
  TraceTarget target() const;

  /// What the latest launch left, once it has ended on `stream`; times are those of std::chrono::steady_clock.
  void fetch(RankTrace& trace, cudaStream_t stream) const;

 private:
  const RankContext& context_;
  int num_rows_;  // of all blocks
  std::uint32_t capacity_;
  DeviceMemory records_;
  DeviceMemory counts_;
  std::int64_t clock_offset_ns_;
};

}  // namespace flashmoe::cuda_backend
