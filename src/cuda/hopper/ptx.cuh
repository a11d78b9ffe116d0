// The Hopper instructions of the engine, one wrapper each, with the ordering rule it stands for.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace flashmoe::cuda_backend::hopper {

__device__ inline std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

/// All of the block's dynamic shared memory.
__device__ inline char* block_shared_memory() {
  extern __shared__ __align__(1024) char shared[];
  return shared;
}

/// An mbarrier in shared memory: completes a phase when all arrivals and announced bytes have come. Phases alternate
/// between parity 0 and 1, starting at 0.
/// Memory ordering: an arrival releases and a completed wait acquires, within the block.
struct Barrier {
  std::uint64_t state;

  __device__ std::uint32_t address() const { return shared_address(&state); }
  __device__ void init(int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address()), "r"(arrivals) : "memory");
  }
  __device__ void arrive() {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address()) : "memory");
  }
  /// Arrives, and makes the phase wait for `bytes` of bulk copies too.
  __device__ void arrive_expecting(int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address()), "r"(bytes) : "memory");
  }
  /// Arrives once this thread's earlier cp.async have landed; counts as one of the barrier's arrivals.
  __device__ void arrive_when_copied() {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(address()) : "memory");
  }
  /// Arrives at the same barrier of block `rank` of the cluster. Tells that block's bulk copies that this thread has waited for
  /// what they overwrite; not meant for ordinary memory: to release that, a cluster's scope would cost a fence of the GPU's.
  __device__ void arrive_at(int rank) {
    asm volatile(
        "{.reg .b32 there; mapa.shared::cluster.u32 there, %0, %1; mbarrier.arrive.shared::cluster.b64 _, [there];}" ::"r"(
            address()),
        "r"(rank)
        : "memory");
  }
  /// Whether the phase of this parity is complete; answers at once.
  __device__ bool test(std::uint32_t parity) const {
    std::uint32_t complete;
    asm volatile(
        "{.reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
        : "=r"(complete)
        : "r"(address()), "r"(parity)
        : "memory");
    return complete != 0;
  }
  /// Sleeps until the phase of this parity is complete.
  __device__ void wait(std::uint32_t parity) const {
    std::uint32_t complete = 0;
    while (complete == 0) {
      asm volatile(
          "{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
          : "=r"(complete)
          : "r"(address()), "r"(parity)
          : "memory");
    }
  }
};

/// Position in a ring of `size` barriers, and the parity of its current phase: in one register, of which roles have few.
template <int size>
class RingPosition {
 public:
  __device__ int index() const { return static_cast<int>(word_ / 2); }
  __device__ std::uint32_t parity() const { return word_ & 1u; }
  __device__ void advance() { word_ = word_ < 2 * (size - 1) ? word_ + 2 : (word_ & 1u) ^ 1u; }

 private:
  std::uint32_t word_ = 0;
};

/// Barriers initialised by this thread are visible to bulk copies after this and a block barrier.
__device__ inline void fence_barrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

/// What this thread has seen comes before what it tells other blocks of its cluster later.
__device__ inline void fence_cluster() { asm volatile("fence.acq_rel.cluster;" ::: "memory"); }

/// This thread's (and by cumulativity others') ordinary accesses to shared memory come before later ones of wgmma and
/// bulk copies. cp.async counts as ordinary.
__device__ inline void fence_async_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
/// The same for global memory: ordinary stores that this thread has acquired come before its later bulk loads.
__device__ inline void fence_async_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

/// 16 bytes into shared memory, of which only the first `bytes` are read, the rest are zeros.
__device__ inline void copy_16(std::uint32_t target, const char* source, int bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(target), "l"(source), "r"(bytes)
               : "memory");
}

/// How long L2 should keep what a bulk copy reads: as anything else, or no longer than it must.
__device__ inline std::uint64_t keep_policy() {
  std::uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ inline std::uint64_t stream_policy() {
  std::uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

/// `bytes` (a multiple of 16) from global into shared memory, both aligned to 16; they count on `barrier`. One thread.
__device__ inline void copy_bulk(std::uint32_t target, const char* source, int bytes, Barrier& barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(target),
               "l"(source), "r"(bytes), "r"(barrier.address())
               : "memory");
}

/// A tensor map on its way to where load_box() reads it. A hint.
__device__ inline void prefetch_map(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

/// A box of a 2-d tensor map into shared memory; its bytes count on `barrier`. Out of bounds is zero. One thread.
__device__ inline void load_box(std::uint32_t target, const CUtensorMap& map, Barrier& barrier, int column, int row,
                                std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
      "[%1, {%3, %4}], [%2], %5;" ::"r"(target),
      "l"(&map), "r"(barrier.address()), "r"(column), "r"(row), "l"(policy)
      : "memory");
}

/// The same of a 4-d tensor map of weights, see TensorMaps: at a row, or at `eight` rows by eights.
__device__ inline void load_weight_box(std::uint32_t target, const CUtensorMap& map, Barrier& barrier, int column, int row,
                                       int eight, std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
      "[%1, {%3, %4, 0, %5}], [%2], %6;" ::"r"(target),
      "l"(&map), "r"(barrier.address()), "r"(column), "r"(row), "r"(eight), "l"(policy)
      : "memory");
}

/// load_weight_box() at a row, into the same place of both blocks of a pair, on the same barrier of each.
__device__ inline void load_weight_box_for_both(std::uint32_t target, const CUtensorMap& map, Barrier& barrier, int column,
                                                int row, std::uint64_t policy) {
  constexpr std::uint16_t kBoth = 3;
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint [%0], "
      "[%1, {%3, %4, 0, 0}], [%2], %6, %5;" ::"r"(target),
      "l"(&map), "r"(barrier.address()), "r"(column), "r"(row), "l"(policy), "h"(kBoth)
      : "memory");
}

__device__ inline void store_shared_8(std::uint32_t address, uint2 value) {
  asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(address), "r"(value.x), "r"(value.y) : "memory");
}

/// Four 8x8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix l / 8.
__device__ inline void store_matrices(std::uint32_t address, std::uint32_t a, std::uint32_t b, std::uint32_t c,
                                      std::uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b),
               "r"(c), "r"(d)
               : "memory");
}

/// The same, each matrix transposed: lane l gives the address of column l % 8 of matrix l / 8.
__device__ inline void store_matrices_transposed(std::uint32_t address, std::uint32_t a, std::uint32_t b,
                                                 std::uint32_t c, std::uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b),
               "r"(c), "r"(d)
               : "memory");
}

/// Two of them; lanes 16 to 31 give no address.
__device__ inline void store_matrices_transposed(std::uint32_t address, std::uint32_t a, std::uint32_t b) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(address), "r"(a), "r"(b) : "memory");
}

/// Barrier of `threads` threads under a name of the block's: 0 is the end of all roles, 1 and 2 are a consumer
/// warpgroup's own, 3 all consumers'.
template <int name, int threads>
__device__ inline void named_barrier() {
  asm volatile("barrier.cta.sync %0, %1;" ::"n"(name), "n"(threads) : "memory");
}
/// The same; whether all of them say yes.
template <int name, int threads>
__device__ inline bool named_barrier_all(bool mine) {
  std::uint32_t all;
  asm volatile(
      "{.reg .pred p, q; setp.ne.u32 p, %1, 0; barrier.cta.red.and.pred q, %2, %3, p; selp.u32 %0, 1, 0, q;}"
      : "=r"(all)
      : "r"(mine ? 1u : 0u), "n"(name), "n"(threads)
      : "memory");
  return all != 0;
}

/// Registers of each thread of the warpgroup from here on. All its warps call it, on a path of their own.
template <int count>
__device__ inline void give_up_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
}
template <int count>
__device__ inline void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
}

}  // namespace flashmoe::cuda_backend::hopper
