// In the place of src/cuda/hopper/ptx.cuh, for fibers of the host: what roles without tensor cores need of it.
#pragma once

#include <cstdint>
#include <cstring>

#include "cuda/instructions.cuh"
#include "on_host/cuda_builtins.hpp"

namespace flashmoe::cuda_backend::hopper {

inline char* block_shared_memory() { return on_host::device().block().shared; }
/// Counted from the block's shared memory.
inline std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(static_cast<const char*>(pointer) - block_shared_memory());
}

/// In 8 bytes, as an mbarrier.
struct Barrier {
  std::int32_t bytes;         ///< announced, less those that have come
  std::uint32_t arrivals : 15;  ///< of a phase
  std::uint32_t missing : 15;   ///< of this one
  std::uint32_t parity : 1;     ///< of this one, which is not complete

  void init(int count) {
    bytes = 0;
    arrivals = missing = static_cast<std::uint32_t>(count);
    parity = 0;
  }
  void arrive() {
    others_get_on();
    --missing;
    complete_if_all();
  }
  void arrive_expecting(int more) {
    bytes += more;
    arrive();
  }
  void come(int some) {
    bytes -= some;
    complete_if_all();
  }
  bool test(std::uint32_t wanted) const { return parity != wanted; }
  void wait(std::uint32_t wanted) const {
    while (!test(wanted)) on_host::device().await(this, "Barrier::wait");
  }

 private:
  void complete_if_all() {
    if (missing > 0 || bytes != 0) return;
    missing = arrivals;
    parity ^= 1u;
    on_host::device().tell(this);
  }
};
static_assert(sizeof(Barrier) == 8);

inline void fence_barrier_init() {}
inline void fence_cluster() {}
inline void fence_async_shared() {}
inline void fence_async_global() {}

inline void copy_bulk(std::uint32_t target, const char* source, int bytes, Barrier& barrier) {
  others_get_on();
  std::memcpy(block_shared_memory() + target, source, static_cast<std::size_t>(bytes));
  barrier.come(bytes);
}

template <int name, int threads>
void named_barrier() {
  on_host::device().barrier("named barrier", name, threads);
}
template <int name, int threads>
bool named_barrier_all(bool mine) {
  return on_host::device().barrier("named barrier with votes", name, threads, mine);
}

template <int count>
void give_up_registers() {}
template <int count>
void take_registers() {}

}  // namespace flashmoe::cuda_backend::hopper
