// combine_row on a warp with shared memory of its own: cells come by bulk copies, all of them at once. Same order and rounding
// as actors/combine_row.hpp.
#pragma once

#include <cstdint>

#include "cuda/combine.cuh"
#include "cuda/hopper/block.cuh"

namespace flashmoe::cuda_backend::hopper {

/// A consumer warp when its block has no tile left: it has its part of the operand stages.
template <DType dtype>
struct BulkWarp : ElementWarp<dtype> {
  static constexpr int kMostCells = detail::RowCells::kMost;
  static constexpr int kBytes = kStages * kStageBytes / kConsumerWarps / 128 * 128;
  static constexpr int kCellBytes = kBytes - kMostCells * static_cast<int>(sizeof(float));
  char* cells;            ///< [kBytes] shared: kCellBytes of cells, and weights of those there are
  Barrier* barrier;       ///< of one arrival
  std::uint32_t* parity;  ///< of its current phase
};

/// Overload for the combiner. Through registers a warp has too few bytes under way, and with more it was slower
/// (docs/adr/0015-short-epilogues.md).
template <DType dtype, class CellOf, class WeightOf>
__device__ void combine_row(const BulkWarp<dtype>& group, DType, int columns, int num_cells, void* y,
                            const CellOf& cell_of, const WeightOf& weight_of) {
  constexpr int kElements = Packet<dtype>::kElements;
  constexpr int kColumnsAtOnce = 32 * kElements;
  constexpr int kElementBytes = static_cast<int>(sizeof(typename Element<dtype>::Stored));
  const detail::RowCells row(group, num_cells, cell_of, weight_of);
  const unsigned present[2] = {__ballot_sync(WarpGroup::kAll, row.cells[0] != nullptr),
                               __ballot_sync(WarpGroup::kAll, row.cells[1] != nullptr)};
  const int count[2] = {__popc(present[0]), __popc(present[1])};
  const int num_present = count[0] + count[1];
  const unsigned before = (1u << group.index()) - 1u;
  const int mine[2] = {__popc(present[0] & before), count[0] + __popc(present[1] & before)};
  auto* const weights = reinterpret_cast<float*>(group.cells + BulkWarp<dtype>::kCellBytes);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (row.cells[half] != nullptr) weights[mine[half]] = row.weights[half];
  }
  int most = BulkWarp<dtype>::kCellBytes / max(num_present, 1) / 16 * kElements;  // columns of as many cells
  if (most > kColumnsAtOnce) most -= most % kColumnsAtOnce;
  fence_async_global();  // other threads stored the cells; this one has acquired them
  int first = 0;
#pragma unroll 1
  do {  // once at least: without columns, code is fetched and nothing moved
    const int width = max(min(columns - first, most), 0);
    const int bytes = width * kElementBytes;
    if (group.leader()) group.barrier->arrive_expecting(num_present * bytes);
    group.sync();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (row.cells[half] == nullptr || bytes == 0) continue;
      copy_bulk(shared_address(group.cells + mine[half] * bytes),
                static_cast<const char*>(row.cells[half]) + std::int64_t{first} * kElementBytes, bytes, *group.barrier);
    }
    group.barrier->wait(*group.parity);
    *group.parity ^= 1u;
#pragma unroll 1
    for (int base = 0; base < width; base += kColumnsAtOnce) {
      const int column = base + group.index() * kElements;
      const char* cell = group.cells + min(column, width - kElements) * kElementBytes;  // beyond: as the last
      float sum[kElements] = {};
#pragma unroll 8
      for (int index = 0; index < num_present; ++index) {
        Packet<dtype> packet;
        packet.bits = *reinterpret_cast<const uint4*>(cell + index * bytes);
        const float weight = weights[index];
#pragma unroll
        for (int e = 0; e < kElements; ++e) sum[e] += weight * Element<dtype>::widen(packet.elements[e]);
      }
      Packet<dtype> result;
#pragma unroll
      for (int e = 0; e < kElements; ++e) result.elements[e] = Element<dtype>::round(sum[e]);
      if (column < width) {
        *reinterpret_cast<uint4*>(static_cast<char*>(y) + (std::int64_t{first} + column) * kElementBytes) = result.bits;
      }
    }
    group.sync();
    first += most;
  } while (first < columns);
}

}  // namespace flashmoe::cuda_backend::hopper
