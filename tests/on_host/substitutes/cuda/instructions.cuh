// In the place of src/cuda/instructions.cuh, for fibers of the host.
#pragma once

#include <cstdint>
#include <cstring>

#include "on_host/cuda_builtins.hpp"

namespace flashmoe::cuda_backend {

inline std::uint64_t now_ns() { return on_host::device().fibers().now_ns(); }
inline int fresh_thread_index() { return on_host::device().thread().index; }
inline int fresh_lane() { return fresh_thread_index() % 32; }
inline std::uint32_t multiprocessor() { return static_cast<std::uint32_t>(on_host::device().block().index); }
inline void store_16(void* target, uint4 value) { std::memcpy(target, &value, sizeof(value)); }
inline uint4 load_16(const void* source) {
  uint4 value;
  std::memcpy(&value, source, sizeof(value));
  return value;
}

}  // namespace flashmoe::cuda_backend
