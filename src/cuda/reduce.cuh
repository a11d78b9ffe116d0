// pre_reduced: the sum of one slot's partial results, pushed to the token's rank.
#pragma once

#include <cstdint>

#include "actors/call.hpp"
#include "cuda/element.cuh"
#include "cuda/fabric.cuh"
#include "cuda/groups.cuh"

namespace flashmoe::cuda_backend {

/// One warp. Choices in order, weighted unless the weight was applied to the input, rounded once.
template <DType dtype>
__device__ void reduce_slot(const Call& call, const Fabric& fabric, std::uint32_t wave_slot, std::uint32_t slot) {
  using Stored = typename Element<dtype>::Stored;
  using Accumulator = typename Element<dtype>::Accumulator;
  const WarpGroup warp;
  constexpr int kElements = Packet<dtype>::kElements;
  const Geometry& g = call.geometry();
  const RouteImage image = call.image(static_cast<int>(wave_slot));
  const std::uint32_t* routes = call.slot_routes(static_cast<int>(wave_slot), slot);
  std::int64_t token = -1;
  for (int choice = 0; choice < g.top_k && token < 0; ++choice) {
    if (routes[choice] != 0) token = image.entry(routes[choice] - 1).return_row / static_cast<std::uint32_t>(g.top_k);
  }
  if (token < 0) return;
  const int source = call.source_of(wave_slot);
  const int ring_slot = call.ring_slot_of(wave_slot);
  auto* cell = reinterpret_cast<Stored*>(fabric.address(source, call.heap.result_cell(ring_slot, token, call.rank)));
  for (int column = warp.index() * kElements; column < g.hidden; column += 32 * kElements) {
    Accumulator sum[kElements] = {};
    for (int choice = 0; choice < g.top_k; ++choice) {
      if (routes[choice] == 0) continue;
      const std::uint32_t entry = routes[choice] - 1;
      const Accumulator weight =
          call.math.weight_on_input ? Accumulator{1}
                                    : static_cast<Accumulator>(image.weights(image.num_entries())[entry]);
      const auto* values =
          reinterpret_cast<const Accumulator*>(call.partial_row(static_cast<int>(wave_slot), entry)) + column;
#pragma unroll
      for (int i = 0; i < kElements; ++i) sum[i] += weight * values[i];
    }
    Packet<dtype> packet;
#pragma unroll
    for (int i = 0; i < kElements; ++i) packet.elements[i] = Element<dtype>::round(sum[i]);
    *reinterpret_cast<uint4*>(cell + column) = packet.bits;
  }
  if (warp.leader()) fabric.count_row(source, g.row_bytes());
}

}  // namespace flashmoe::cuda_backend
