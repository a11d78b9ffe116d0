// What CUDA gives device code without asking, for fibers of the host (device.hpp). Before any device code is included.
#pragma once

#include <vector_functions.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <stdexcept>

#include "on_host/device.hpp"

#define __launch_bounds__(...)

namespace flashmoe::on_host {

inline Device& device() { return Device::now(); }

template <class Read>
struct Index {
  operator unsigned() const { return static_cast<unsigned>(Read{}()); }  // NOLINT: as CUDA's are numbers
};
struct ThreadIndex {
  int operator()() const { return device().thread().index; }
};
struct BlockIndex {
  int operator()() const { return device().block().index; }
};
struct BlockDimension {
  int operator()() const { return device().block().num_threads; }
};
struct GridDimension {
  int operator()() const { return device().block().num_blocks; }
};
template <class Read>
struct Indexes {
  Index<Read> x;
};

}  // namespace flashmoe::on_host

inline constexpr flashmoe::on_host::Indexes<flashmoe::on_host::ThreadIndex> threadIdx{};
inline constexpr flashmoe::on_host::Indexes<flashmoe::on_host::BlockIndex> blockIdx{};
inline constexpr flashmoe::on_host::Indexes<flashmoe::on_host::BlockDimension> blockDim{};
inline constexpr flashmoe::on_host::Indexes<flashmoe::on_host::GridDimension> gridDim{};

using std::max;
using std::min;

inline void __syncthreads() {
  auto& device = flashmoe::on_host::device();
  device.barrier("__syncthreads", -1, device.block().num_threads);
}
inline void __syncwarp() { flashmoe::on_host::device().all_of_warp("__syncwarp", 0); }

inline void check_whole(unsigned mask) {
  if (mask != 0xffffffffu) throw std::logic_error("collectives of a part of a warp are not known here");
}
template <class T>
T __shfl_sync(unsigned mask, T value, int lane) {
  check_whole(mask);
  return flashmoe::on_host::device().all_of_warp("__shfl_sync", value)[static_cast<std::size_t>(lane) % 32];
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned by) {
  check_whole(mask);
  const auto lane = static_cast<unsigned>(threadIdx.x) % 32;
  return flashmoe::on_host::device().all_of_warp("__shfl_up_sync", value)[lane >= by ? lane - by : lane];
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned by) {
  check_whole(mask);
  const auto lane = static_cast<unsigned>(threadIdx.x) % 32;
  return flashmoe::on_host::device().all_of_warp("__shfl_down_sync", value)[lane + by < 32 ? lane + by : lane];
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int with) {
  check_whole(mask);
  const auto lane = static_cast<unsigned>(threadIdx.x) % 32;
  return flashmoe::on_host::device().all_of_warp("__shfl_xor_sync", value)[lane ^ static_cast<unsigned>(with)];
}
inline unsigned __ballot_sync(unsigned mask, bool mine) {
  check_whole(mask);
  unsigned bits = 0;
  const auto all = flashmoe::on_host::device().all_of_warp("__ballot_sync", mine);
  for (unsigned lane = 0; lane < 32; ++lane) bits |= all[lane] ? 1u << lane : 0u;
  return bits;
}
inline int __all_sync(unsigned mask, bool mine) { return __ballot_sync(mask, mine) == 0xffffffffu ? 1 : 0; }
inline int __any_sync(unsigned mask, bool mine) { return __ballot_sync(mask, mine) != 0 ? 1 : 0; }
template <class T>
unsigned __match_any_sync(unsigned mask, T value) {
  check_whole(mask);
  unsigned bits = 0;
  const auto all = flashmoe::on_host::device().all_of_warp("__match_any_sync", value);
  for (unsigned lane = 0; lane < 32; ++lane) bits |= all[lane] == value ? 1u << lane : 0u;
  return bits;
}
template <class T>
T __reduce_add_sync(unsigned mask, T value) {
  check_whole(mask);
  T sum = 0;
  for (const T each : flashmoe::on_host::device().all_of_warp("__reduce_add_sync", value)) sum += each;
  return sum;
}
template <class T>
T __reduce_min_sync(unsigned mask, T value) {
  check_whole(mask);
  const auto all = flashmoe::on_host::device().all_of_warp("__reduce_min_sync", value);
  return *std::min_element(all.begin(), all.end());
}

// One fiber runs at a time, so that all of these are atomic.
inline void others_get_on() { flashmoe::on_host::device().fibers().poll(); }
template <class T, class U>
T atomicAdd(T* word, U value) {
  others_get_on();
  return std::exchange(*word, static_cast<T>(*word + static_cast<T>(value)));
}
template <class T, class U>
T atomicOr(T* word, U value) {
  others_get_on();
  return std::exchange(*word, static_cast<T>(*word | static_cast<T>(value)));
}
template <class T, class U>
T atomicExch(T* word, U value) {
  others_get_on();
  return std::exchange(*word, static_cast<T>(value));
}
template <class T, class U, class V>
T atomicCAS(T* word, U expected, V value) {
  others_get_on();
  const T before = *word;
  if (before == static_cast<T>(expected)) *word = static_cast<T>(value);
  return before;
}
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}
inline void __nanosleep(unsigned ns) { flashmoe::on_host::device().fibers().sleep(ns); }
[[noreturn]] inline void __trap() { throw std::logic_error("__trap()"); }

inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
  const std::uint64_t bytes = std::uint64_t{high} << 32 | low;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) result |= static_cast<unsigned>(bytes >> 8 * (selector >> 4 * i & 7u) & 0xffu) << 8 * i;
  return result;
}
inline int __popc(unsigned bits) { return std::popcount(bits); }
inline int __ffs(int bits) { return bits == 0 ? 0 : std::countr_zero(static_cast<unsigned>(bits)) + 1; }
inline unsigned __dp4a(unsigned a, unsigned b, unsigned sum) {
  for (int byte = 0; byte < 4; ++byte) sum += (a >> 8 * byte & 0xffu) * (b >> 8 * byte & 0xffu);
  return sum;
}
