// All consumers of a block as the group of an actor.
#pragma once

#include <cstdint>

#include "actors/group.hpp"
#include "cuda/groups.cuh"
#include "cuda/hopper/block.cuh"

namespace flashmoe::cuda_backend::hopper {

/// See actors/group.hpp. It has the staging areas while it lives: the consumers have no task.
class ConsumerGroup {
 public:
  static constexpr int kMostKeys = 1024;  ///< of match(): below it

  /// Collective. Keys will be below `num_keys`.
  __device__ ConsumerGroup(BlockMemory& block, int thread, int num_keys)
      : notes_(*reinterpret_cast<Notes*>(block.staging[0])), thread_(thread) {
#pragma unroll 1
    for (int key = thread; key < num_keys; key += kConsumerThreads) notes_.matches[key] = 0;
    await_consumers();
  }

  __device__ static constexpr int size() { return kConsumerThreads; }
  __device__ int index() const { return thread_; }
  __device__ bool leader() const { return thread_ == 0; }
  __device__ static void sync() {
    WarpGroup::sync();  // barriers of a warp that has diverged confuse synccheck
    await_consumers();
  }
  __device__ static bool all(bool value) { return all_consumers(value); }
  __device__ static bool any(bool value) { return any_consumer(value); }
  __device__ Scan scan(std::uint32_t value) const { return across_warps(WarpGroup::scan(value)); }
  __device__ Scan number(bool mine) const { return across_warps(WarpGroup::number(mine)); }
  __device__ std::uint32_t sum(std::uint32_t value) const { return across_warps({0, WarpGroup::sum(value)}).total; }

  /// A key below 0 matches none.
  __device__ Match match(int key) const {
    const Match of_warp = WarpGroup::match(key);
    const bool counts = key >= 0 && of_warp.index == 0;
    auto* const matches = reinterpret_cast<std::uint8_t*>(notes_.matches + (key >= 0 ? key : 0));  // of each warp
    if (counts) matches[warp()] = static_cast<std::uint8_t>(of_warp.count);
    await_consumers();
    const std::uint64_t all = *reinterpret_cast<const std::uint64_t*>(matches);
    const std::uint64_t before = all & ((std::uint64_t{1} << 8 * warp()) - 1);
    await_consumers();
    if (counts) matches[warp()] = 0;
    WarpGroup::sync();  // another thread of the warp may be the next that writes it
    return {sum_of_bytes(before) + of_warp.index, sum_of_bytes(all)};
  }

 private:
  struct Notes {
    std::uint64_t matches[kMostKeys];  ///< of each key, a byte a warp: its threads that have it; 0 between calls
    std::uint32_t sums[kConsumerWarps];
  };
  static_assert(sizeof(Notes) <= sizeof(BlockMemory::staging) && kConsumerWarps == sizeof(std::uint64_t));

  __device__ int warp() const { return thread_ / 32; }
  __device__ static int sum_of_bytes(std::uint64_t bytes) {
    const unsigned low = __dp4a(static_cast<unsigned>(bytes), 0x01010101u, 0u);
    return static_cast<int>(__dp4a(static_cast<unsigned>(bytes >> 32), 0x01010101u, low));
  }
  /// From what each warp has for itself, to what they have together.
  __device__ Scan across_warps(const Scan& of_warp) const {
    if (WarpGroup::leader()) notes_.sums[warp()] = of_warp.total;
    await_consumers();
    const Scan all{sum_before(notes_.sums, warp()) + of_warp.before, sum_before(notes_.sums, kConsumerWarps)};
    await_consumers();  // before the sums are written again
    return all;
  }

  Notes& notes_;
  int thread_;
};

}  // namespace flashmoe::cuda_backend::hopper
