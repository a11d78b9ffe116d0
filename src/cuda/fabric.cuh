// The GPU's fabric: peers' heaps are mapped, a put is stores over NVLink (or to this GPU), a signal an atomic add.
#pragma once

#include <cstdint>

#include "actors/signal.hpp"
#include "core/line.hpp"
#include "cuda/groups.cuh"

namespace flashmoe::cuda_backend {

/// Bytes a block sent to other ranks, in shared memory; see cpu::Traffic.
struct Traffic {
  unsigned long long payload_bytes;
  unsigned long long overhead_bytes;
};

/// 16 bytes straight from and to L2, never from a stale L1 line. A warp's stores of one line are one transaction.
__device__ inline void store_16(void* target, uint4 value) {
  asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(target), "r"(value.x), "r"(value.y),
               "r"(value.z), "r"(value.w)
               : "memory");
}
__device__ inline uint4 load_16(const void* source) {
  uint4 value;
  asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(source)
               : "memory");
  return value;
}

/// Threads that store one line, 16 bytes each; a warp stores four lines at once.
inline constexpr int kLineThreads = 8;

class Fabric {
 public:
  __device__ Fabric(char* const* heap_base, int rank, Traffic* traffic)
      : heap_base_(heap_base), rank_(rank), traffic_(traffic) {}

  /// bytes: a multiple of 16; both addresses 16-byte aligned.
  __device__ void put_row(const WarpGroup& group, int peer, std::size_t offset, const void* source,
                          std::int64_t bytes) const {
    char* target = heap_base_[peer] + offset;
    const char* from = static_cast<const char*>(source);
#pragma unroll 4
    for (std::int64_t at = group.index() * 16; at < bytes; at += 32 * 16) {
      *reinterpret_cast<uint4*>(target + at) = *reinterpret_cast<const uint4*>(from + at);
    }
    if (peer != rank_ && group.leader()) count_payload(bytes);
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
    const std::int64_t count = num_lines(num_words);
    for (std::int64_t base = 0; base < count; base += 32 / kLineThreads) {
      const std::int64_t line = base + group.index() / kLineThreads;
      const std::int64_t word = line * Line::kDataWords + 2 * part;
      const std::uint64_t low = word < num_words ? source[word] : 0;
      const std::uint64_t high = part == kLineThreads - 1 ? tag : (word + 1 < num_words ? source[word + 1] : 0);
      __syncwarp();  // together again, so that a line leaves in one instruction
      if (line < count) {
        store_16(reinterpret_cast<char*>(lines + line) + part * 16,
                 make_uint4(static_cast<unsigned>(low), static_cast<unsigned>(low >> 32), static_cast<unsigned>(high),
                            static_cast<unsigned>(high >> 32)));
      }
    }
  }

  char* const* heap_base_;
  int rank_;
  Traffic* traffic_;
};

/// See actors/line_io.hpp. Up to 16 lines are in flight at once.
__device__ inline bool try_load_lines(const WarpGroup& group, const Line* lines, std::int64_t num_words,
                                      std::uint64_t tag, void* words) {
  constexpr int kBatch = 4;
  auto* target = static_cast<std::uint64_t*>(words);
  const int part = group.index() % kLineThreads;
  const std::int64_t count = num_lines(num_words);
  for (std::int64_t base = 0; base < count; base += kBatch * (32 / kLineThreads)) {
    uint4 value[kBatch];
    bool arrived = true;
    __syncwarp();  // a line is read in one instruction
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const std::int64_t line = base + i * (32 / kLineThreads) + group.index() / kLineThreads;
      if (line >= count) continue;
      value[i] = load_16(reinterpret_cast<const char*>(lines + line) + part * 16);
      const std::uint64_t high = value[i].z | (std::uint64_t{value[i].w} << 32);
      arrived = arrived && (part != kLineThreads - 1 || high == tag);
    }
    if (!group.all(arrived)) return false;
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const std::int64_t line = base + i * (32 / kLineThreads) + group.index() / kLineThreads;
      if (line >= count) continue;
      const std::int64_t word = line * Line::kDataWords + 2 * part;
      if (word < num_words) target[word] = value[i].x | (std::uint64_t{value[i].y} << 32);
      if (part != kLineThreads - 1 && word + 1 < num_words) {
        target[word + 1] = value[i].z | (std::uint64_t{value[i].w} << 32);
      }
    }
  }
  return true;
}

}  // namespace flashmoe::cuda_backend
