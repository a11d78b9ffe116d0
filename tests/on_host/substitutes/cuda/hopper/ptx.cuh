// In the place of src/cuda/hopper/ptx.cuh, for fibers of the host. Copies beside the threads come at any time and in
// any order.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>

#include "cuda/hopper/tensor_maps.hpp"
#include "cuda/instructions.cuh"
#include "on_host/cuda_builtins.hpp"

namespace flashmoe::cuda_backend::hopper {

inline char* block_shared_memory() { return on_host::device().block().shared; }
/// Counted from the block's shared memory.
inline std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(static_cast<const char*>(pointer) - block_shared_memory());
}

/// Where block `rank` of the cluster has what lies at `address` of this block's shared memory.
template <class T>
T* of_block(T* address, int rank) {
  const on_host::Block& block = on_host::device().block();
  if (rank == block.rank) return address;
  return reinterpret_cast<T*>(block.other->shared + shared_address(address));
}

/// See src/cuda/hopper/ptx.cuh.
template <int size>
class RingPosition {
 public:
  int index() const { return index_; }
  std::uint32_t parity() const { return parity_; }
  void advance() {
    if (++index_ < size) return;
    index_ = 0;
    parity_ ^= 1u;
  }

 private:
  int index_ = 0;
  std::uint32_t parity_ = 0;
};

/// In 8 bytes, as an mbarrier.
struct Barrier {
  std::int32_t bytes;           ///< announced, less those that have come
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
  void arrive_when_copied() {
    on_host::device().copy_later([this, copies = std::exchange(on_host::device().thread().copies, {})] {
      for (const on_host::Work& copy : copies) copy();
      arrive();
    });
  }
  void arrive_at(int rank) { of_block(this, rank)->arrive(); }
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

inline void copy_16(std::uint32_t target, const char* source, int bytes) {
  char* const to = block_shared_memory() + target;
  on_host::device().thread().copies.push_back([to, source, bytes] {
    std::memset(to, 0, 16);
    std::memcpy(to, source, static_cast<std::size_t>(bytes));
  });
}

inline std::uint64_t keep_policy() { return 0; }
inline std::uint64_t stream_policy() { return 1; }

inline void copy_bulk(std::uint32_t target, const char* source, int bytes, Barrier& barrier) {
  char* const to = block_shared_memory() + target;
  on_host::device().copy_later([to, source, bytes, &barrier] {
    std::memcpy(to, source, static_cast<std::size_t>(bytes));
    barrier.come(bytes);
  });
}

inline void prefetch_map(const CUtensorMap&) {}

/// A box whose first element is at `place`, swizzled by its address; where it overhangs it is zero. Returns its bytes.
inline int copy_box(char* shared, std::uint32_t target, const CUtensorMap& map, const std::int64_t (&place)[4]) {
  if (target % 1024 != 0) throw std::logic_error("a box does not go to a multiple of 1024 bytes");
  const auto size = [&](int dimension) {
    return dimension < map.dimensions ? static_cast<int>(map.box[static_cast<std::size_t>(dimension)]) : 1;
  };
  std::uint32_t row = target;
  for (int i3 = 0; i3 < size(3); ++i3) {
    for (int i2 = 0; i2 < size(2); ++i2) {
      for (int i1 = 0; i1 < size(1); ++i1, row += 128) {
        const int offsets[4] = {0, i1, i2, i3};
        const char* from = static_cast<const char*>(map.data);
        bool exists = true;
        for (std::size_t d = 1; d < static_cast<std::size_t>(map.dimensions); ++d) {
          const std::int64_t at = place[d] + offsets[d];
          exists = exists && at >= 0 && at < static_cast<std::int64_t>(map.sizes[d]);
          from += at * static_cast<std::int64_t>(map.strides[d - 1]);
        }
        for (std::int64_t i0 = 0; i0 < size(0); ++i0) {
          const std::int64_t column = place[0] + i0;
          char* const to = shared + ((row + 2 * i0) ^ (row >> 7 & 7u) << 4);
          std::memset(to, 0, 2);
          if (exists && column >= 0 && column < static_cast<std::int64_t>(map.sizes[0]))
            std::memcpy(to, from + 2 * column, 2);
        }
      }
    }
  }
  on_host::Device::note("boxes of " + std::to_string((row - target) / 128));
  return static_cast<int>(row - target);
}
inline void load_box(std::uint32_t target, const CUtensorMap& map, Barrier& barrier, int column, int row,
                     std::uint64_t) {
  on_host::device().copy_later([shared = block_shared_memory(), target, &map, &barrier, column, row] {
    barrier.come(copy_box(shared, target, map, {column, row, 0, 0}));
  });
}
inline void load_weight_box(std::uint32_t target, const CUtensorMap& map, Barrier& barrier, int column, int row,
                            int eight, std::uint64_t) {
  on_host::device().copy_later([shared = block_shared_memory(), target, &map, &barrier, column, row, eight] {
    barrier.come(copy_box(shared, target, map, {column, row, 0, eight}));
  });
}
inline void load_weight_box_for_both(std::uint32_t target, const CUtensorMap& map, Barrier& barrier, int column,
                                     int row, std::uint64_t) {
  on_host::Device::note("boxes for both");
  for (int rank = 0; rank < 2; ++rank) {
    on_host::device().copy_later([shared = of_block(block_shared_memory(), rank), target, &map,
                                  there = of_block(&barrier, rank), column,
                                  row] { there->come(copy_box(shared, target, map, {column, row, 0, 0})); });
  }
}

inline void store_shared_8(std::uint32_t address, uint2 value) {
  on_host::Device::note("tagged packets");
  std::memcpy(block_shared_memory() + address, &value, sizeof(value));
}

/// Matrix `matrix` of those that a warp stores; `address`: what the lane gives.
inline void store_matrix(std::uint32_t address, std::uint32_t pair, int matrix, bool transposed) {
  const auto addresses = on_host::device().all_of_warp("stmatrix", address);
  const int lane = fresh_lane();
  for (int i = 0; i < 2; ++i) {
    int row = lane / 4;
    int column = lane % 4 * 2 + i;
    if (transposed) std::swap(row, column);
    std::memcpy(block_shared_memory() + addresses[static_cast<std::size_t>(8 * matrix + row)] + 2 * column,
                reinterpret_cast<const char*>(&pair) + 2 * i, 2);
  }
}
inline void store_matrices(std::uint32_t address, std::uint32_t a, std::uint32_t b, std::uint32_t c, std::uint32_t d) {
  const std::uint32_t pairs[] = {a, b, c, d};
  for (int matrix = 0; matrix < 4; ++matrix) store_matrix(address, pairs[matrix], matrix, false);
}
inline void store_matrices_transposed(std::uint32_t address, std::uint32_t a, std::uint32_t b, std::uint32_t c,
                                      std::uint32_t d) {
  const std::uint32_t pairs[] = {a, b, c, d};
  for (int matrix = 0; matrix < 4; ++matrix) store_matrix(address, pairs[matrix], matrix, true);
}
inline void store_matrices_transposed(std::uint32_t address, std::uint32_t a, std::uint32_t b) {
  store_matrix(address, a, 0, true);
  store_matrix(address, b, 1, true);
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
