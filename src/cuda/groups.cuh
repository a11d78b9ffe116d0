// Thread groups of the GPU that run one actor: a warp, or the block's processor warps.
#pragma once

#include <cstdint>

#include "actors/group.hpp"

namespace flashmoe::cuda_backend {

/// One warp; all 32 lanes call every member.
struct WarpGroup {
  static constexpr unsigned kAll = 0xffffffffu;
  __device__ static constexpr int size() { return 32; }
  __device__ static int index() { return static_cast<int>(threadIdx.x % 32); }
  __device__ static bool leader() { return index() == 0; }
  /// Orders memory among the lanes.
  __device__ static void sync() { __syncwarp(); }
  __device__ static bool all(bool value) { return __all_sync(kAll, value) != 0; }
  __device__ static bool any(bool value) { return __any_sync(kAll, value) != 0; }

  /// The leader's value. Word by word, so any trivially copyable type will do.
  template <class T>
  __device__ static T broadcast(T value) {
    return take(value, 0);
  }
  template <class T>
  __device__ static T first(bool mine, T value) {
    return take(value, __ffs(static_cast<int>(__ballot_sync(kAll, mine))) - 1);
  }
  template <int rounds>
  __device__ static Pick pick(const std::uint32_t (&values)[rounds], std::uint32_t n) {
    Pick picked;
    unsigned mask = 0;
    int round = -1;
    auto before = static_cast<int>(n);  // in the round
#pragma unroll
    for (int i = 0; i < rounds; ++i) {
      const unsigned wanted = __ballot_sync(kAll, values[i] > 0);
      const std::uint32_t until = picked.total + static_cast<std::uint32_t>(__popc(wanted));
      if (n >= picked.total && n < until) {
        mask = wanted;
        round = i;
        before = static_cast<int>(n - picked.total);
      }
      picked.total = until;
    }
    const int lane = nth_bit(mask, before);
#pragma unroll
    for (int i = 0; i < rounds; ++i) {
      const std::uint32_t value = __shfl_sync(kAll, values[i], lane);
      if (i == round) picked.value = value;
    }
    if (round >= 0) picked.position = round * 32 + lane;
    return picked;
  }
  __device__ static Match match(int key) {
    const unsigned same = __match_any_sync(kAll, key);
    return {__popc(same & ((1u << index()) - 1u)), __popc(same)};
  }
  __device__ static Scan number(bool mine) {
    const unsigned yes = __ballot_sync(kAll, mine);
    return {static_cast<std::uint32_t>(__popc(yes & ((1u << index()) - 1u))), static_cast<std::uint32_t>(__popc(yes))};
  }
  __device__ static std::uint32_t sum(std::uint32_t value) { return __reduce_add_sync(kAll, value); }
  __device__ static std::uint32_t least(std::uint32_t value) { return __reduce_min_sync(kAll, value); }
  __device__ static Scan scan(std::uint32_t value) {
    std::uint32_t sum = value;
    for (int offset = 1; offset < 32; offset *= 2) {
      const std::uint32_t below = __shfl_up_sync(kAll, sum, static_cast<unsigned>(offset));
      if (index() >= offset) sum += below;
    }
    return {sum - value, __shfl_sync(kAll, sum, 31)};
  }

 private:
  /// Where the n-th bit of a mask is, from 0 on.
  __device__ static int nth_bit(unsigned mask, int n) {
    int bit = 0;
#pragma unroll
    for (int half = 16; half > 0; half /= 2) {
      const int below = __popc(mask & ((1u << half) - 1u));
      if (n < below) continue;
      n -= below;
      bit += half;
      mask >>= half;
    }
    return bit;
  }
  template <class T>
  __device__ static T take(T value, int lane) {
    constexpr int words = (sizeof(T) + 3) / 4;
    unsigned buffer[words] = {};
    memcpy(buffer, &value, sizeof(T));
    for (int word = 0; word < words; ++word) buffer[word] = __shfl_sync(kAll, buffer[word], lane);
    memcpy(&value, buffer, sizeof(T));
    return value;
  }
};

/// The first kThreads threads of a block, on named barrier 1; the block's other warps run other actors.
struct ProcessorGroup {
  static constexpr int kThreads = 256;
  static constexpr int kScratchBytes = 32;
  void* scratch;  ///< [kScratchBytes] shared, 8-byte aligned

  __device__ static constexpr int size() { return kThreads; }
  __device__ static int index() { return static_cast<int>(threadIdx.x); }
  __device__ static bool leader() { return threadIdx.x == 0; }
  __device__ static void sync() { asm volatile("barrier.cta.sync 1, 256;" ::: "memory"); }
  __device__ static bool all(bool value) {
    int result;
    asm volatile(
        "{.reg .pred p, q; setp.ne.s32 p, %1, 0; barrier.cta.red.and.pred q, 1, 256, p; selp.s32 %0, 1, 0, q;}"
        : "=r"(result)
        : "r"(static_cast<int>(value))
        : "memory");
    return result != 0;
  }
  __device__ static bool any(bool value) { return !all(!value); }
  template <class T>
  __device__ T broadcast(T value) const {
    static_assert(sizeof(T) <= kScratchBytes);
    if (leader()) memcpy(scratch, &value, sizeof(T));
    sync();
    memcpy(&value, scratch, sizeof(T));
    sync();
    return value;
  }
};

}  // namespace flashmoe::cuda_backend
