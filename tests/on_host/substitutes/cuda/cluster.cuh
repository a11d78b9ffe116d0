// In the place of src/cuda/cluster.cuh, for fibers of the host: clusters of one block or two.
#pragma once

#include <cstdint>

#include "on_host/cuda_builtins.hpp"

namespace flashmoe::cuda_backend {

struct ClusterPlace {
  int rank = 0;
  int size = 1;

  static ClusterPlace here() {
    const on_host::Block& block = on_host::device().block();
    return {block.rank, block.other != nullptr ? 2 : 1};
  }
  static void sync() {
    if (on_host::device().block().other != nullptr) on_host::device().cluster_barrier();
  }
  static bool load(const bool* address, int rank) { return *there(address, rank); }
  static std::uint64_t look(const std::uint64_t* address) {
    others_get_on();
    return *address;
  }
  static void exchange(std::uint64_t* address, std::uint64_t value, int rank) {
    others_get_on();
    *there(address, rank) = value;
  }

 private:
  /// Where block `rank` has what lies at `address` of this block's shared memory.
  template <class T>
  static T* there(T* address, int rank) {
    const on_host::Block& block = on_host::device().block();
    if (rank == block.rank) return address;
    return reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(address) -
                                reinterpret_cast<std::uintptr_t>(block.shared) +
                                reinterpret_cast<std::uintptr_t>(block.other->shared));
  }
};

}  // namespace flashmoe::cuda_backend
