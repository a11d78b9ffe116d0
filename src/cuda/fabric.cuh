// The GPU's fabric: peers' heaps are mapped, a put is stores over NVLink (or to this GPU), a signal an atomic add.
#pragma once

#include <cstdint>

#include "actors/signal.hpp"
#include "core/line.hpp"
#include "cuda/groups.cuh"
#include "cuda/instructions.cuh"

namespace flashmoe::cuda_backend {

/// Bytes a block sent to other ranks, in shared memory; see cpu::Traffic.
struct Traffic {
  unsigned long long payload_bytes;
  unsigned long long overhead_bytes;
};

/// Bytes and lines that a warp moves at once, 16 bytes a thread.
inline constexpr int kWarpBytes = 32 * 16;
inline constexpr int kLineThreads = 8;
inline constexpr int kWarpLines = 32 / kLineThreads;

class Fabric {
 public:
  __device__ Fabric(char* const* heap_base, int rank, Traffic* traffic)
      : heap_base_(heap_base), rank_(rank), traffic_(traffic) {}

  /// bytes: a multiple of 16; both addresses 16-byte aligned.
  __device__ void put_row(const WarpGroup& group, int peer, std::size_t offset, const void* source,
                          std::int64_t bytes) const {
    copy_row(group, address(peer, offset), static_cast<const char*>(source), bytes);
    if (group.leader()) count_row(peer, bytes);
  }

  /// put_row() without counting what is sent.
  __device__ static void copy_row(const WarpGroup& group, char* target, const char* from, std::int64_t bytes) {
    const auto end = static_cast<int>(bytes);
    constexpr int kBatch = 4;  // loads in flight: each takes as long as a row of 4 KiB over the wire
#pragma unroll 1
    for (int base = group.index() * 16; base < end; base += kBatch * kWarpBytes) {
      uint4 values[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int at = base + i * kWarpBytes;
        if (at < end) values[i] = *reinterpret_cast<const uint4*>(from + at);
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int at = base + i * kWarpBytes;
        if (at < end) *reinterpret_cast<uint4*>(target + at) = values[i];
      }
    }
  }

  __device__ void put_lines(const WarpGroup& group, int peer, std::size_t offset, const void* words,
                            std::int64_t num_words, std::uint64_t tag) const {
    store_lines(group, peer, offset, words, num_words, tag);
    if (peer != rank_ && group.leader()) count_overhead(num_lines(num_words) * static_cast<std::int64_t>(sizeof(Line)));
  }

  __device__ void put_row_lines(const WarpGroup& group, int peer, std::size_t offset, const void* words,
                                std::int64_t num_words, std::uint64_t tag) const {
    store_lines(group, peer, offset, words, num_words, tag);
    if (peer == rank_ || !group.leader()) return;
    count_payload(num_words * 8);
    count_overhead(num_lines(num_words) * static_cast<std::int64_t>(sizeof(Line)) - num_words * 8);
  }

  /// One thread's own call. Memory ordering: release, system scope; device scope for this rank's own counters, whose
  /// readers share its GPU. See actors/signal.hpp.
  __device__ void signal(int peer, std::size_t offset, std::uint64_t amount) const {
    auto* counter = reinterpret_cast<std::uint64_t*>(heap_base_[peer] + offset);
    if (peer == rank_) {
      add<Scope::device>(counter, amount);
    } else {
      add<Scope::system>(counter, amount);
      count_overhead(sizeof(std::uint64_t));
    }
  }

  /// What this thread has done or seen is told by all its signal_all() that follow: to this rank's actors, or to other ranks, too.
  __device__ void release(bool to_others) const {
    if (to_others) {
      fence_release<Scope::system>();
    } else {
      fence_release<Scope::device>();
    }
  }

  /// signal() of several counters of one peer, after release(): a fence for each would be waited for. Amounts of 0 are passed over.
  template <std::size_t count>
  __device__ void signal_all(int peer, const std::size_t (&offsets)[count], const std::uint64_t (&amounts)[count]) const {
    int signals = 0;
#pragma unroll
    for (std::size_t i = 0; i < count; ++i) {
      if (amounts[i] == 0) continue;
      tally<Scope::system>(reinterpret_cast<std::uint64_t*>(heap_base_[peer] + offsets[i]), amounts[i]);
      ++signals;
    }
    if (peer != rank_) count_overhead(signals * static_cast<std::int64_t>(sizeof(std::uint64_t)));
  }

  /// Where a peer's cell is, for engines that store from registers; they count what they store.
  __device__ char* address(int peer, std::size_t offset) const { return heap_base_[peer] + offset; }
  __device__ void count_row(int peer, std::int64_t bytes) const {
    if (peer != rank_) count_payload(bytes);
  }
  /// Bytes that such an engine stores to other ranks.
  __device__ void count_payload(std::int64_t bytes) const {
    atomicAdd(&traffic_->payload_bytes, static_cast<unsigned long long>(bytes));
  }

 private:
  __device__ void count_overhead(std::int64_t bytes) const {
    atomicAdd(&traffic_->overhead_bytes, static_cast<unsigned long long>(bytes));
  }

  __device__ void store_lines(const WarpGroup& group, int peer, std::size_t offset, const void* words,
                              std::int64_t num_words, std::uint64_t tag) const {
    auto* lines = reinterpret_cast<Line*>(heap_base_[peer] + offset);
    const auto* source = static_cast<const std::uint64_t*>(words);
    const int part = group.index() % kLineThreads;
    const auto end = static_cast<int>(num_words);
    const auto count = static_cast<int>(num_lines(num_words));
    constexpr int kBatch = 2;  // of loads in flight
#pragma unroll 1
    for (int first = 0; first < count; first += kBatch * kWarpLines) {
      const int base = first + group.index() / kLineThreads;
      std::uint64_t low[kBatch];
      std::uint64_t high[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int word = (base + i * kWarpLines) * Line::kDataWords + 2 * part;
        low[i] = word < end ? source[word] : 0;
        high[i] = part == kLineThreads - 1 ? tag : (word + 1 < end ? source[word + 1] : 0);
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int line = base + i * kWarpLines;
        __syncwarp();  // together again, so that a line leaves in one instruction
        if (line >= count) continue;
        store_16(reinterpret_cast<char*>(lines + line) + part * 16,
                 make_uint4(static_cast<unsigned>(low[i]), static_cast<unsigned>(low[i] >> 32),
                            static_cast<unsigned>(high[i]), static_cast<unsigned>(high[i] >> 32)));
      }
    }
  }

  char* const* heap_base_;
  int rank_;
  Traffic* traffic_;
};

/// See actors/line_io.hpp. kBatch * kWarpLines lines are in flight at once.
template <int kBatch>
__device__ std::int64_t load_lines_by(const WarpGroup& group, const Line* lines, std::int64_t num_words,
                                      std::uint64_t tag, void* words) {
  auto* target = static_cast<std::uint64_t*>(words);
  const int part = group.index() % kLineThreads;
  const auto all_words = static_cast<int>(num_words);
  const auto count = static_cast<int>(num_lines(num_words));
  for (int base = 0; base < count; base += kBatch * kWarpLines) {
    const int first = base + group.index() / kLineThreads;
    uint4 value[kBatch];
    bool arrived = true;
    __syncwarp();  // a line is read in one instruction
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (first + i * kWarpLines < count) {
        value[i] = load_16(reinterpret_cast<const char*>(lines + first + i * kWarpLines) + part * 16);
      }
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const std::uint64_t high = value[i].z | (std::uint64_t{value[i].w} << 32);
      arrived = arrived && (part != kLineThreads - 1 || first + i * kWarpLines >= count || high == tag);
    }
    if (!group.all(arrived)) return std::int64_t{base} * Line::kDataWords;
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int line = first + i * kWarpLines;
      if (line >= count) continue;
      const int word = line * Line::kDataWords + 2 * part;
      if (word < all_words) target[word] = value[i].x | (std::uint64_t{value[i].y} << 32);
      if (part != kLineThreads - 1 && word + 1 < all_words) {
        target[word + 1] = value[i].z | (std::uint64_t{value[i].w} << 32);
      }
    }
  }
  return num_words;
}
__device__ inline std::int64_t load_lines(const WarpGroup& group, const Line* lines, std::int64_t num_words,
                                          std::uint64_t tag, void* words) {
  return load_lines_by<8>(group, lines, num_words, tag, words);
}
__device__ inline bool try_load_lines(const WarpGroup& group, const Line* lines, std::int64_t num_words,
                                      std::uint64_t tag, void* words) {
  return load_lines_by<4>(group, lines, num_words, tag, words) == num_words;
}

}  // namespace flashmoe::cuda_backend
