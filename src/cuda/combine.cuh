// combine_row and try_combine_lines on a warp: 16 bytes a lane. Same order and rounding as actors/combine_row.hpp.
#pragma once

#include <cstdint>

#include "actors/combine_lines.hpp"
#include "core/heap_layout.hpp"
#include "core/line.hpp"
#include "cuda/element.cuh"
#include "cuda/fabric.cuh"
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

  template <class CellOf, class WeightOf>
  __device__ RowCells(const WarpGroup& group, int num_cells, const CellOf& cell_of, const WeightOf& weight_of) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int index = group.index() + 32 * half;
      if (index >= num_cells) continue;
      weights[half] = weight_of(index);  // read beside what cell_of() reads; an absent cell's is not used
      cells[half] = cell_of(index);
    }
    group.sync();
  }

  __device__ const char* cell(int index) const {
    const void* mine = index < 32 ? cells[0] : cells[1];
    const auto address = reinterpret_cast<std::uint64_t>(mine);
    return reinterpret_cast<const char*>(__shfl_sync(WarpGroup::kAll, address, index % 32));
  }
  __device__ float weight(int index) const {
    return __shfl_sync(WarpGroup::kAll, index < 32 ? weights[0] : weights[1], index % 32);
  }
};

/// The order of the sums of a row: the cells of 32 lanes' columns, then of the next columns.
struct CellWalk {
  int column = 0;  ///< lane 0's
  int index = 0;

  __device__ void advance(int num_cells, int columns_at_once) {
    if (++index < num_cells) return;
    index = 0;
    column += columns_at_once;
  }
};

}  // namespace detail

/// Overload for the combiner. kBatch cells are read at a time, of several columns where a column has few: the sum waits for
/// memory, not for itself.
template <DType dtype, class CellOf, class WeightOf>
__device__ void combine_row(const ElementWarp<dtype>& group, DType, int columns, int num_cells, void* y,
                            const CellOf& cell_of, const WeightOf& weight_of) {
  using Accumulator = typename Element<dtype>::Accumulator;
  constexpr int kElements = Packet<dtype>::kElements;
  constexpr int kBatch = 8;
  constexpr int kColumnsAtOnce = 32 * kElements;
  const detail::RowCells row(group, num_cells, cell_of, weight_of);
  const int lane_column = group.index() * kElements;
  const auto offset_of = [](int column) {
    return std::int64_t{column} * static_cast<std::int64_t>(sizeof(typename Element<dtype>::Stored));
  };
  detail::CellWalk reading;
  detail::CellWalk summing;
  Accumulator sum[kElements] = {};
  do {  // once at least: without columns, code is fetched and nothing moved
    Packet<dtype> packets[kBatch];
    unsigned present = 0;  // of the batch's cells, bit by bit
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const char* cell = reading.column < columns ? row.cell(reading.index) : nullptr;
      const int column = reading.column + lane_column;
      reading.advance(num_cells, kColumnsAtOnce);
      if (cell == nullptr) continue;
      present |= 1u << i;
      if (column < columns) packets[i].bits = *reinterpret_cast<const uint4*>(cell + offset_of(column));
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if ((present >> i & 1u) != 0) {
        const auto weight = static_cast<Accumulator>(row.weight(summing.index));
#pragma unroll
        for (int e = 0; e < kElements; ++e) sum[e] += weight * Element<dtype>::widen(packets[i].elements[e]);
      }
      const int column = summing.column + lane_column;
      summing.advance(num_cells, kColumnsAtOnce);
      if (summing.index > 0) continue;
      Packet<dtype> result;
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        result.elements[e] = Element<dtype>::round(sum[e]);
        sum[e] = 0;
      }
      if (column < columns) *reinterpret_cast<uint4*>(static_cast<char*>(y) + offset_of(column)) = result.bits;
    }
  } while (reading.column < columns);
}

/// Overload for the combiner, see actors/combine_lines.hpp: a lane sums the 16 bytes of a line that it reads, kBatch cells of
/// them at a time, and y takes them from there.
template <DType dtype, class LinesOf, class Exists, class WeightOf>
__device__ int try_combine_lines(const ElementWarp<dtype>& group, DType, const ResultLines& lines, char* y,
                                 const LinesOf& lines_of, const Exists& exists, const WeightOf& weight_of) {
  using Accumulator = typename Element<dtype>::Accumulator;
  constexpr int kElements = Packet<dtype>::kElements;
  constexpr int kBatch = 8;
  const int num_cells = lines.num_cells;
  const auto count = static_cast<int>(num_lines(lines.num_words));
  const detail::RowCells row(
      group, num_cells, [&](int cell) -> const void* { return exists(cell) ? lines_of(cell) : nullptr; }, weight_of);
  const int part = group.index() % kLineThreads;
  for (int base = 0; base < count; base += kWarpLines) {
    const int line = base + group.index() / kLineThreads;
    const bool exists_here = line < count;
    Accumulator sum[kElements] = {};
    int missing = num_cells;
    for (int first = 0; first < num_cells; first += kBatch) {
      Packet<dtype> packets[kBatch];
      unsigned present = 0;
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const char* cell = first + i < num_cells ? row.cell(first + i) : nullptr;
        if (cell == nullptr) continue;
        present |= 1u << i;
        __syncwarp();  // a line is read in one instruction
        if (exists_here) packets[i].bits = load_16(cell + line * static_cast<int>(sizeof(Line)) + part * 16);
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if ((present >> i & 1u) == 0) continue;
        const std::uint64_t high = packets[i].bits.z | (std::uint64_t{packets[i].bits.w} << 32);
        if (exists_here && part == kLineThreads - 1 && high != lines.tag && first + i < missing) missing = first + i;
        const auto weight = static_cast<Accumulator>(row.weight(first + i));
#pragma unroll
        for (int e = 0; e < kElements; ++e) sum[e] += weight * Element<dtype>::widen(packets[i].elements[e]);
      }
    }
    missing = __reduce_min_sync(WarpGroup::kAll, missing);
    if (missing < num_cells) return missing;
    Packet<dtype> result;
#pragma unroll
    for (int e = 0; e < kElements; ++e) result.elements[e] = Element<dtype>::round(sum[e]);
    const int word = line * Line::kDataWords + 2 * part;  // may be odd: 8 bytes at a time
    auto* target = reinterpret_cast<uint2*>(y) + word;
    if (word < lines.num_words) target[0] = make_uint2(result.bits.x, result.bits.y);
    if (part < kLineThreads - 1 && word + 1 < lines.num_words) target[1] = make_uint2(result.bits.z, result.bits.w);
  }
  return num_cells;
}

}  // namespace flashmoe::cuda_backend
