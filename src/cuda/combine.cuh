// combine_row on a warp: 16 bytes a lane. Same order and rounding as actors/combine_row.hpp.
#pragma once

#include <cstdint>

#include "core/heap_layout.hpp"
#include "cuda/element.cuh"
#include "cuda/groups.cuh"

namespace flashmoe::cuda_backend {

/// A warp of a kernel that knows its element type, so that it carries the code for no other. `reads_ahead`: it has the
/// registers to sum cells while the next are under way.
template <DType dtype, bool reads_ahead = false>
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
template <DType dtype, bool reads_ahead, class CellOf, class WeightOf>
__device__ void combine_row(const ElementWarp<dtype, reads_ahead>& group, DType, int columns, int num_cells, void* y,
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
  const auto offset_of = [](int column) {
    return std::int64_t{column} * static_cast<std::int64_t>(sizeof(typename Element<dtype>::Stored));
  };
  /// The present cells of a batch, bit by bit.
  const auto read = [&](int column, int first, Packet<dtype> (&packets)[kBatch]) {
    unsigned present = 0;
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const char* cell = first + i < num_cells ? row.cell(first + i) : nullptr;
      if (cell == nullptr) continue;
      present |= 1u << i;
      if (column < columns) packets[i].bits = *reinterpret_cast<const uint4*>(cell + offset_of(column));
    }
    return present;
  };
  int column = group.index() * kElements;
  int first = 0;
  Accumulator sum[kElements] = {};
  Packet<dtype> packets[kBatch];
  unsigned present = read(column, first, packets);
  bool more = false;
  do {  // once at least: without columns, code is fetched and nothing moved
    const bool last = first + kBatch >= num_cells;  // of these columns
    const int next_column = last ? column + 32 * kElements : column;
    const int next_first = last ? 0 : first + kBatch;
    more = next_column - group.index() * kElements < columns;
    Packet<dtype> ahead[kBatch];
    unsigned ahead_present = 0;
    if (reads_ahead && more) ahead_present = read(next_column, next_first, ahead);
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if ((present >> i & 1u) == 0) continue;
      const auto weight = static_cast<Accumulator>(row.weight(first + i));
#pragma unroll
      for (int e = 0; e < kElements; ++e) sum[e] += weight * Element<dtype>::widen(packets[i].elements[e]);
    }
    if (last) {
      Packet<dtype> result;
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        result.elements[e] = Element<dtype>::round(sum[e]);
        sum[e] = 0;
      }
      if (column < columns) *reinterpret_cast<uint4*>(static_cast<char*>(y) + offset_of(column)) = result.bits;
    }
    column = next_column;
    first = next_first;
    if constexpr (reads_ahead) {
#pragma unroll
      for (int i = 0; i < kBatch; ++i) packets[i].bits = ahead[i].bits;
      present = ahead_present;
    } else if (more) {
      present = read(column, first, packets);
    }
  } while (more);
}

}  // namespace flashmoe::cuda_backend
