// Blocks of a cluster and their shared memory; before compute capability 9.0 every block is a cluster of its own.
#pragma once

#include <cstdint>

namespace flashmoe::cuda_backend {

struct ClusterPlace {
  int rank = 0;  ///< of this block in its cluster
  int size = 1;

  __device__ static ClusterPlace here() {
    ClusterPlace place;
#if __CUDA_ARCH__ >= 900
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(place.rank));
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(place.size));
#endif
    return place;
  }
  /// Orders the shared memory of all blocks of the cluster.
  __device__ static void sync() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release; barrier.cluster.wait.acquire;" ::: "memory");
#else
    __syncthreads();
#endif
  }
  /// *address of block `rank`.
  __device__ static float load(const float* address, int rank) {
#if __CUDA_ARCH__ >= 900
    float value;
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(there(address, rank)) : "memory");
    return value;
#else
    return *address;
#endif
  }
  /// Four floats at a multiple of 16 bytes.
  __device__ static float4 load(const float4* address, int rank) {
#if __CUDA_ARCH__ >= 900
    float4 value;
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
                 : "r"(there(address, rank))
                 : "memory");
    return value;
#else
    return *address;
#endif
  }

  __device__ static bool load(const bool* address, int rank) {
#if __CUDA_ARCH__ >= 900
    std::uint32_t value;
    asm volatile("ld.shared::cluster.u8 %0, [%1];" : "=r"(value) : "r"(there(address, rank)) : "memory");
    return value != 0;
#else
    return *address;
#endif
  }
  /// A word of this block that another block of the cluster exchanges, and exchange of such a word of block `rank`. Relaxed:
  /// they say nothing about memory. Both atomic, as racecheck knows no other accesses that may meet.
  __device__ static std::uint64_t look(const std::uint64_t* address) {
#if __CUDA_ARCH__ >= 900
    std::uint64_t value;
    const auto here = static_cast<std::uint32_t>(__cvta_generic_to_shared(address));
    asm volatile("atom.relaxed.cluster.shared::cta.or.b64 %0, [%1], 0;" : "=l"(value) : "r"(here) : "memory");
    return value;
#else
    return *address;
#endif
  }
  __device__ static void exchange(std::uint64_t* address, std::uint64_t value, int rank) {
#if __CUDA_ARCH__ >= 900
    asm volatile("{.reg .b64 before; atom.relaxed.cluster.shared::cluster.exch.b64 before, [%0], %1;}" ::"r"(there(address, rank)),
                 "l"(value)
                 : "memory");
#else
    *address = value;
#endif
  }

 private:
#if __CUDA_ARCH__ >= 900
  /// Where block `rank` has what lies at `address` of this block's shared memory.
  __device__ static std::uint32_t there(const void* address, int rank) {
    const auto here = static_cast<std::uint32_t>(__cvta_generic_to_shared(address));
    std::uint32_t remote;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(here), "r"(rank));
    return remote;
  }
#endif
};

}  // namespace flashmoe::cuda_backend
