// combine_row on a warp: 16 bytes a lane. Same order and rounding as actors/combine_row.hpp.
#pragma once

#include <cstdint>

#include "core/heap_layout.hpp"
#include "cuda/element.cuh"
#include "cuda/groups.cuh"

namespace flashmoe::cuda_backend {

/// A warp of a kernel that knows its element type, so that it carries the code for no other.
template <DType dtype>
struct ElementWarp : WarpGroup {};

namespace detail {

/// What the lanes know together about a row's cells: lane l holds cells l and l + 32.
struct RowCells {
  static constexpr int kMost = 64;
  static_assert(Limits::top_k <= kMost && kMaxRanks <= kMost);
  const void* cells[2] = {nullptr, nullptr};
  float weights[2] = {0.0f, 0.0f};

  __device__ const char* cell(int index) const {
    const void* mine = index < 32 ? cells[0] : cells[1];
    const auto address = reinterpret_cast<std::uint64_t>(mine);
    return reinterpret_cast<const char*>(__shfl_sync(WarpGroup::kAll, address, index % 32));
  }
  __device__ float weight(int index) const {
    return __shfl_sync(WarpGroup::kAll, index < 32 ? weights[0] : weights[1], index % 32);
  }
};

}  // namespace detail

/// Overload for the combiner. Cells of a column are read kBatch at a time: the sum waits for memory, not for itself.
template <DType dtype, class CellOf, class WeightOf>
__device__ void combine_row(const ElementWarp<dtype>& group, DType, int columns, int num_cells, void* y,
                            const CellOf& cell_of, const WeightOf& weight_of) {
  using Accumulator = typename Element<dtype>::Accumulator;
  constexpr int kElements = Packet<dtype>::kElements;
  constexpr int kBatch = 8;
  detail::RowCells row;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int index = group.index() + 32 * half;
    if (index >= num_cells) continue;
    row.cells[half] = cell_of(index);
    if (row.cells[half] != nullptr) row.weights[half] = weight_of(index);
  }
  group.sync();
  for (int base_column = 0; base_column < columns; base_column += 32 * kElements) {
    const int column = base_column + group.index() * kElements;
    const std::int64_t at = std::int64_t{column} * static_cast<std::int64_t>(sizeof(typename Element<dtype>::Stored));
    Accumulator sum[kElements] = {};
    for (int base = 0; base < num_cells; base += kBatch) {
      Packet<dtype> packets[kBatch];
      unsigned present = 0;
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const char* cell = base + i < num_cells ? row.cell(base + i) : nullptr;
        if (cell == nullptr) continue;
        present |= 1u << i;
        if (column < columns) packets[i].bits = *reinterpret_cast<const uint4*>(cell + at);
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if ((present >> i & 1u) == 0) continue;
        const auto weight = static_cast<Accumulator>(row.weight(base + i));
#pragma unroll
        for (int e = 0; e < kElements; ++e) sum[e] += weight * Element<dtype>::widen(packets[i].elements[e]);
      }
    }
    Packet<dtype> result;
#pragma unroll
    for (int e = 0; e < kElements; ++e) result.elements[e] = Element<dtype>::round(sum[e]);
    if (column < columns) *reinterpret_cast<uint4*>(static_cast<char*>(y) + at) = result.bits;
  }
}

}  // namespace flashmoe::cuda_backend
