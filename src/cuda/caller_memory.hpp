// Memory that a caller hands in.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "cuda/check.hpp"
#include "flashmoe/error.hpp"

namespace flashmoe::cuda_backend {

/// Throws InvalidArgument unless `pointer` is null or memory of GPU `device`.
inline void require_gpu_memory(const char* name, const void* pointer, int device) {
  if (pointer == nullptr) return;
  cudaPointerAttributes attributes{};
  check(cudaPointerGetAttributes(&attributes, pointer), "cudaPointerGetAttributes");
  if (attributes.type == cudaMemoryTypeDevice && attributes.device == device) return;
  const std::string got = attributes.type == cudaMemoryTypeDevice    ? fmt::format("GPU {}", attributes.device)
                          : attributes.type == cudaMemoryTypeManaged ? "managed memory"
                                                                     : "host memory";
  throw InvalidArgument(fmt::format(
      "{} must lie in memory of GPU {} for backend cuda, got {}: copy it to where it is used first", name, device, got));
}

/// Kernels move rows in pieces of so many bytes.
inline constexpr std::size_t kRowAlignment = 16;

/// The same for rows of tokens or weights, which begin at a multiple of kRowAlignment.
inline void require_row_memory(const char* name, const void* pointer, int device) {
  require_gpu_memory(name, pointer, device);
  if (reinterpret_cast<std::uintptr_t>(pointer) % kRowAlignment == 0) return;
  throw InvalidArgument(fmt::format("{} ({}) must be aligned to {} bytes for backend cuda: pass memory as allocators give it, "
                                    "or a copy",
                                    name, pointer, kRowAlignment));
}

}  // namespace flashmoe::cuda_backend
