// combine_row on a warp: 16 bytes a lane. Same order and rounding as actors/combine_row.hpp.
#pragma once

#include <cstdint>

#include "cuda/element.cuh"
#include "cuda/groups.cuh"

namespace flashmoe::cuda_backend {

template <DType dtype, class CellOf, class WeightOf>
__device__ void combine_packets(const WarpGroup& group, int columns, int num_cells, void* y, const CellOf& cell_of,
                                const WeightOf& weight_of) {
  using Accumulator = typename Element<dtype>::Accumulator;
  constexpr int kElements = Packet<dtype>::kElements;
  for (int column = group.index() * kElements; column < columns; column += 32 * kElements) {
    Accumulator sum[kElements] = {};
    for (int index = 0; index < num_cells; ++index) {
      const void* cell = cell_of(index);
      if (cell == nullptr) continue;
      Packet<dtype> packet;
      packet.bits = *reinterpret_cast<const uint4*>(static_cast<const typename Element<dtype>::Stored*>(cell) + column);
      const Accumulator weight = static_cast<Accumulator>(weight_of(index));
#pragma unroll
      for (int i = 0; i < kElements; ++i) sum[i] += weight * Element<dtype>::widen(packet.elements[i]);
    }
    Packet<dtype> result;
#pragma unroll
    for (int i = 0; i < kElements; ++i) result.elements[i] = Element<dtype>::round(sum[i]);
    *reinterpret_cast<uint4*>(static_cast<typename Element<dtype>::Stored*>(y) + column) = result.bits;
  }
}

template <class CellOf, class WeightOf>
__device__ void combine_row(const WarpGroup& group, DType dtype, int columns, int num_cells, void* y,
                            const CellOf& cell_of, const WeightOf& weight_of) {
  switch (dtype) {
    case DType::bf16: combine_packets<DType::bf16>(group, columns, num_cells, y, cell_of, weight_of); break;
    case DType::fp16: combine_packets<DType::fp16>(group, columns, num_cells, y, cell_of, weight_of); break;
    case DType::tf32:
    case DType::fp32: combine_packets<DType::tf32>(group, columns, num_cells, y, cell_of, weight_of); break;
    case DType::fp64: combine_packets<DType::fp64>(group, columns, num_cells, y, cell_of, weight_of); break;
  }
}

}  // namespace flashmoe::cuda_backend
