// Where a row of a down task goes in lined form: one word for the foreman, who finds it, and the epilogues, who store there.
#pragma once

#include <cstddef>
#include <cstdint>

#include "actors/call.hpp"
#include "actors/task.hpp"

namespace flashmoe::cuda_backend::hopper {

/// A result's place as lined results need it: rank in the upper 16 bits, heap offset below.
__device__ inline std::uint64_t pack_place(int rank, std::size_t offset) {
  return (static_cast<std::uint64_t>(rank) << 48) | offset;
}
__device__ inline int rank_of_place(std::uint64_t place) { return static_cast<int>(place >> 48); }
__device__ inline std::size_t offset_of_place(std::uint64_t place) { return place & ((std::uint64_t{1} << 48) - 1); }

/// From the lines of a down task's first tile to those of tile `tile`.
__device__ inline std::size_t bytes_of_lines_before(const Call& call, const Task& task, int tile) {
  return (static_cast<std::size_t>(tile) - task.tile) * static_cast<std::size_t>(call.heap.segment_lines) * sizeof(Line);
}

}  // namespace flashmoe::cuda_backend::hopper
