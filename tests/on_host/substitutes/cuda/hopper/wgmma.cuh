// In the place of src/cuda/hopper/wgmma.cuh, for fibers of the host: products run when they are waited for, not when
// they are asked for, so that a stage that is filled again too soon is seen.
#pragma once

#include <cstdint>
#include <cstring>
#include <deque>
#include <string>

#include "cuda/element.cuh"
#include "cuda/hopper/ptx.cuh"
#include "flashmoe/types.hpp"

namespace flashmoe::cuda_backend::hopper {

template <int columns>
using Accumulators = float[columns / 2];

/// Its address, in 16 bytes.
inline std::uint64_t operand(std::uint32_t address) {
  if (address % 1024 != 0) throw std::logic_error("an operand does not begin at a multiple of 1024 bytes");
  return address >> 4;
}

inline std::uint32_t uniform(std::uint32_t value) { return __shfl_sync(0xffffffffu, value, 0); }

inline void wgmma_fence() { on_host::device().all_of_warp("wgmma fence", 0); }
inline void wgmma_commit() {
  on_host::device().all_of_warp("wgmma commit", 0);
  on_host::Thread& thread = on_host::device().thread();
  thread.groups.push_back(std::exchange(thread.products, {}));
}
template <int pending>
void wgmma_wait() {
  on_host::device().all_of_warp("wgmma wait", 0);
  on_host::Thread& thread = on_host::device().thread();
  for (; thread.groups.size() > pending; thread.groups.pop_front()) {
    for (const on_host::Work& product : thread.groups.front()) product();
  }
}

/// 16 elements of k of an operand's row, which lie swizzled.
template <DType dtype>
void load_operand_row(const char* shared, std::uint64_t operand, int row, float (&values)[16]) {
  const std::uint32_t first = static_cast<std::uint32_t>(operand << 4) + static_cast<std::uint32_t>(row) * 128;
  for (std::uint32_t chunk = 0; chunk < 2; ++chunk) {
    const std::uint32_t at = first + 16 * chunk;
    Packet<dtype> packet;
    std::memcpy(&packet.bits, shared + (at ^ (at >> 7 & 7u) << 4), sizeof(packet.bits));
    for (int e = 0; e < 8; ++e)
      values[8 * chunk + static_cast<std::uint32_t>(e)] = Element<dtype>::widen(packet.elements[e]);
  }
}

/// A warp's share of a product: 16 rows of a by `columns` rows of b, over 16 elements of k. The warp's threads ask for
/// the same one after the other, with nothing between them: it is computed once a turn.
class WarpProducts {
 public:
  template <DType dtype, int columns>
  const float* find(const char* shared, std::uint64_t a, std::uint64_t b, int first_row) {
    if (std::exchange(turn_, on_host::device().fibers().now_ns()) != on_host::device().fibers().now_ns()) count_ = 0;
    for (std::size_t i = 0; i < count_; ++i) {
      const Product& known = products_[i];
      if (known.shared == shared && known.a == a && known.b == b && known.first_row == first_row) return known.sums;
    }
    if (count_ == products_.size()) products_.emplace_back();
    Product& product = products_[count_++];
    product.shared = shared;
    product.a = a;
    product.b = b;
    product.first_row = first_row;
    multiply<dtype, columns>(product);
    on_host::Device::note("products of " + std::to_string(columns));
    return product.sums;
  }

 private:
  static constexpr int kRows = 16;
  static constexpr int kMostColumns = 256;
  struct Product {
    const char* shared;
    std::uint64_t a, b;
    int first_row;
    float sums[kRows * kMostColumns];  ///< [kRows][columns]
  };

  template <DType dtype, int columns>
  static void multiply(Product& product) {
    float by_k[16][columns];
    for (int column = 0; column < columns; ++column) {
      float values[16];
      load_operand_row<dtype>(product.shared, product.b, column, values);
      for (int k = 0; k < 16; ++k) by_k[k][column] = values[k];
    }
    for (int row = 0; row < kRows; ++row) {
      float values[16];
      load_operand_row<dtype>(product.shared, product.a, product.first_row + row, values);
      float* const sums = product.sums + row * columns;
      for (int column = 0; column < columns; ++column) sums[column] = 0;
      for (int k = 0; k < 16; ++k) {
        for (int column = 0; column < columns; ++column) sums[column] += values[k] * by_k[k][column];
      }
    }
  }

  std::deque<Product> products_;
  std::size_t count_ = 0;  ///< of this turn
  std::uint64_t turn_ = 0;
};
inline WarpProducts warp_products;

template <DType dtype, int columns>
void wgmma(Accumulators<columns>& d, std::uint64_t a, std::uint64_t b) {
  on_host::Thread& thread = on_host::device().thread();
  thread.products.push_back([&d, a, b, thread = thread.index, shared = thread.block->shared] {
    const float* const sums = warp_products.find<dtype, columns>(shared, a, b, thread / 32 % 4 * 16);
    for (int i = 0; i < columns / 2; ++i) {
      d[i] += sums[(thread % 32 / 4 + i / 2 % 2 * 8) * columns + i / 4 * 8 + thread % 4 * 2 + i % 2];
    }
  });
}

}  // namespace flashmoe::cuda_backend::hopper
