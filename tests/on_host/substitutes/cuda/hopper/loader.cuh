// In the place of src/cuda/hopper/loader.cuh: loaders that load nothing, as the consumers beside this file read what they multiply
// where it is. They wait for what loaders wait for, and tell what these tell.
#pragma once

#include <cstdint>

#include "cuda/hopper/block.cuh"
#include "cuda/hopper/tensor_maps.hpp"

namespace flashmoe::cuda_backend::hopper {

template <bool kPairs>
class Loader {
 public:
  Loader(const Call& call, BlockMemory& block, const TensorMaps&, int warp) : call_(call), block_(block), warp_(warp) {}

  void run() {
    if (lends_stages(call_)) block_.listed.wait(0);
    for (std::uint32_t number = 0;; ++number) {
      const std::uint32_t slot = number % kTaskSlots;
      block_.filled[slot].wait(parity_of(number));
      if (block_.slots[slot].task.kind == TaskKind::exit) return;
      if (warp_ == 0 && threadIdx.x % 32 == 0) {
        on_host::device().fibers().sleep_some();
        block_.ending[slot].arrive();
      }
      block_.stored[slot].wait(parity_of(number));
      block_.done[slot].arrive();
    }
  }

 private:
  const Call& call_;
  BlockMemory& block_;
  int warp_;
};

}  // namespace flashmoe::cuda_backend::hopper
