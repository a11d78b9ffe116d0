// Epilogue: what a consumer warp does with its 16 rows x 256 columns of a finished product: activation in registers,
// then through the warp's staging area to the intermediate, or to where each result goes.
#pragma once

#include <cstdint>

#include "cuda/element.cuh"
#include "cuda/fabric.cuh"
#include "cuda/groups.cuh"
#include "cuda/hopper/activate.cuh"
#include "cuda/hopper/block.cuh"
#include "cuda/hopper/result_place.cuh"
#include "cuda/hopper/wgmma.cuh"
#include "flashmoe/views.hpp"

namespace flashmoe::cuda_backend::hopper {

template <DType dtype>
class Epilogue {
 public:
  /// `warp`: of the consumer warps. Made for one tile: the lane is asked for again each time, so that what follows from
  /// it does not stay in registers through the next product.
  __device__ Epilogue(const Call& call, const Fabric& fabric, const WeightsView& weights, BlockMemory& block, int warp)
      : call_(call), fabric_(fabric), weights_(weights), staging_(block.staging[warp]), first_row_(warp * 16) {
    lane_ = fresh_lane();
  }

  /// `tile`: a function that says which, see Consumer::tile(): through an activation there is no register to keep it in.
  template <class TileOf>
  __device__ void store_up(const TaskSlot& slot, const TileOf& tile, Accumulators<kTileColumns>& d) const {
    const Geometry& g = call_.geometry();
    if (call_.math.weight_on_input) weigh(slot, d);
    if (call_.math.up_bias) {
      const int first = tile() * g.tile.up_columns;
      const int columns = (call_.math.gated ? 2 : 1) * g.intermediate;
      const float* bias = weights_.up_bias + std::int64_t{slot.local_expert} * columns;
      if (call_.math.gated) {
        add_bias<0, kGroups / 2>(d, bias, first, g.intermediate);
        add_bias<kGroups / 2, kGroups>(d, bias + g.intermediate, first, g.intermediate);
      } else {
        add_bias<0, kGroups>(d, bias, first, g.intermediate);
      }
    }
    with_activation(call_.math.activation, [&](auto activation) { activate<activation.value>(d); });
    const int first = tile() * g.tile.up_columns;
    const std::int64_t row_bytes = std::int64_t{g.intermediate} * 2;
    char* const rows =
        call_.intermediate_row(slot.task.index, static_cast<std::uint32_t>(first_row_)) + std::int64_t{first} * 2;
    const Targets targets = targets_of(slot, [&](int row) { return rows + row * row_bytes; });
    const int columns = g.intermediate - first;
    store_half<0>(d, targets, columns);
    if (!call_.math.gated) store_half<kGroups / 2>(d, targets, columns);
  }

  /// Down tile `tile`, and the one after it if the product is wide: the second half of the accumulators holds nothing otherwise.
  __device__ void store_down(const TaskSlot& slot, int tile, Accumulators<kTileColumns>& d) const {
    const bool wide = is_wide(slot, tile);
    static_assert(kTileColumns == 2 * kDownColumns);
    const Geometry& g = call_.geometry();
    const int first = tile * kDownColumns;
    const int columns = wide ? g.hidden - first : min(g.hidden - first, kDownColumns);
    if (call_.math.down_bias) {
      add_bias<0, kGroups>(d, weights_.down_bias + std::int64_t{slot.local_expert} * g.hidden, first, g.hidden);
    }
    if (call_.pre_reduced()) {
      keep_partials(slot, d, first, columns);
    } else if (call_.lined()) {
      push_lines<0>(slot, d, tile);
      if (wide) push_lines<kGroups / 2>(slot, d, tile + 1);
    } else {
      const Targets targets = targets_of(slot, [&](int row) {
        return reinterpret_cast<char*>(slot.rows[first_row_ + row]) + std::int64_t{first} * 2;
      });
      store_half<0>(d, targets, columns);
      if (wide) store_half<kGroups / 2>(d, targets, columns);
    }
  }

 private:
  static constexpr int kGroups = kTileColumns / 8;  ///< of 8 columns; four accumulators each
  static constexpr int kChunkGroups = 8;            ///< that fill the staging area: 128 bytes of each row

  /// Row (of the warp's 16) of the first accumulator of a group, and column of the group; see Accumulators.
  __device__ int row() const { return lane_ / 4; }
  __device__ int column() const { return lane_ % 4 * 2; }
  __device__ bool exists(const TaskSlot& slot, int row) const {
    return first_row_ + row < static_cast<int>(slot.num_rows);
  }

  __device__ void weigh(const TaskSlot& slot, Accumulators<kTileColumns>& d) const {
    const float low = slot.weights[first_row_ + row()];
    const float high = slot.weights[first_row_ + row() + 8];
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      d[4 * group] *= low;
      d[4 * group + 1] *= low;
      d[4 * group + 2] *= high;
      d[4 * group + 3] *= high;
    }
  }

  /// bias[first + column] to the columns of groups [begin, end), of which the first is column 0; from `limit` on there is none.
  template <int begin, int end>
  __device__ void add_bias(Accumulators<kTileColumns>& d, const float* bias, int first, int limit) const {
#pragma unroll
    for (int group = begin; group < end; ++group) {
      const int at = first + (group - begin) * 8 + column();
      if (at >= limit) continue;
      const float low = bias[at];
      const float high = bias[at + 1];
      d[4 * group] += low;
      d[4 * group + 1] += high;
      d[4 * group + 2] += low;
      d[4 * group + 3] += high;
    }
  }

  /// Gated, the tile's first half is gate columns, the second the up columns of the same units, in the same thread.
  template <Activation activation>
  __device__ void activate(Accumulators<kTileColumns>& d) const {
    if (call_.math.gated) {
      const auto alpha = static_cast<float>(call_.math.swiglu_alpha);
      const auto limit = static_cast<float>(call_.math.swiglu_limit);
#pragma unroll
      for (int i = 0; i < 2 * kGroups; ++i) {
        d[i] = gate_up(activation, d[i], d[2 * kGroups + i], alpha, limit);
        if (i + 1 == kGroups) WarpGroup::sync();  // ptxas does not mix one half with the other: registers are few
      }
    } else if constexpr (activation != Activation::swiglu_clamped) {
#pragma unroll
      for (int i = 0; i < 4 * kGroups; ++i) d[i] = flashmoe::activate(activation, d[i]);
    }
  }

  /// Where this lane stores 16 bytes of every kRowsApart-th row: found once a product, for all of its columns.
  static constexpr int kRowsApart = 4;
  static constexpr int kRowsEach = 16 / kRowsApart;
  struct Targets {
    char* rows[kRowsEach];
    int num_rows;  ///< from the lane's first on
  };
  template <class RowOf>
  __device__ Targets targets_of(const TaskSlot& slot, const RowOf& row_of) const {
    const int first = lane_ / 8;
    Targets targets;
    targets.num_rows = static_cast<int>(slot.num_rows) - first_row_ - first;
#pragma unroll
    for (int i = 0; i < kRowsEach; ++i) targets.rows[i] = row_of(first + i * kRowsApart) + lane_ % 8 * 16;
    return targets;
  }

  /// 128 columns from group `first_group` on, 64 at a time, in 16-byte stores; the product has `columns`. What a lane stores it has
  /// read before the first store: else it would wait for shared memory with each.
  template <int first_group>
  __device__ void store_half(const Accumulators<kTileColumns>& d, const Targets& targets, int columns) const {
    const int matrix_row = lane_ % 16;
    const std::uint32_t matrix = shared_address(staging_) + static_cast<std::uint32_t>(matrix_row * 128);
    const int row = lane_ / 8;
    const int chunk = lane_ % 8;
    const char* const staged = staging_ + row * 128;
#pragma unroll
    for (int base = first_group; base < first_group + kGroups / 2; base += kChunkGroups) {
#pragma unroll
      for (int pair = 0; pair < kChunkGroups; pair += 2) {
        const int at = 4 * (base + pair);
        store_matrices(matrix + static_cast<std::uint32_t>(((pair + lane_ / 16) ^ (matrix_row % 8)) << 4),
                       round_pair<dtype>(d[at], d[at + 1]), round_pair<dtype>(d[at + 2], d[at + 3]),
                       round_pair<dtype>(d[at + 4], d[at + 5]), round_pair<dtype>(d[at + 6], d[at + 7]));
      }
      __syncwarp();
      uint4 parts[kRowsEach];
#pragma unroll
      for (int i = 0; i < kRowsEach; ++i) {
        const int place = chunk ^ row ^ (i * kRowsApart % 8);  // row is below kRowsApart
        parts[i] = *reinterpret_cast<const uint4*>(staged + i * kRowsApart * 128 + (place << 4));
      }
      __syncwarp();
#pragma unroll
      for (int i = 0; i < kRowsEach; ++i) {
        if (i * kRowsApart < targets.num_rows && base * 8 + chunk * 8 < columns) {
          *reinterpret_cast<uint4*>(targets.rows[i] + base * 16) = parts[i];
        }
      }
    }
  }

  __device__ void keep_partials(const TaskSlot& slot, const Accumulators<kTileColumns>& d, int first, int columns) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (!exists(slot, row() + 8 * half)) continue;
      auto* target = reinterpret_cast<float*>(slot.rows[first_row_ + row() + 8 * half]) + first + column();
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        if (group * 8 < columns) {
          const int at = 4 * group + 2 * half;
          *reinterpret_cast<float2*>(target + group * 8) = make_float2(d[at], d[at + 1]);
        }
      }
    }
  }

  /// Lines want whole rows: the staging area takes eight at a time, rows r to r + 3 and r + 8 to r + 11 of the warp's.
  template <int first_group>
  __device__ void push_lines(const TaskSlot& slot, const Accumulators<kTileColumns>& d, int tile) const {
    constexpr int kRowBytes = kDownColumns * 2;
    static_assert(kStagingBytes == 8 * kRowBytes);
    const WarpGroup warp;
    const int rest = call_.geometry().hidden - tile * kDownColumns;
    const int valid = rest < kDownColumns ? rest : kDownColumns;
    const std::size_t at = bytes_of_lines_before(call_, slot.task, tile);
#pragma unroll 1
    for (int first = 0; first < 8; first += 4) {
      if (row() / 4 * 4 == first) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          auto* target = reinterpret_cast<std::uint32_t*>(staging_ + (row() % 4 + 4 * half) * kRowBytes) + lane_ % 4;
#pragma unroll
          for (int group = 0; group < kGroups / 2; ++group) {
            const int from = 4 * (first_group + group) + 2 * half;
            target[4 * group] = round_pair<dtype>(d[from], d[from + 1]);
          }
        }
      }
      __syncwarp();
      for (int staged = 0; staged < 8; ++staged) {
        const int row = first + staged % 4 + staged / 4 * 8;
        if (!exists(slot, row)) continue;
        const std::uint64_t place = slot.rows[first_row_ + row];
        fabric_.put_row_lines(warp, rank_of_place(place), offset_of_place(place) + at, staging_ + staged * kRowBytes,
                              valid / 4, line_tag(call_.generation, call_.epoch));
      }
      __syncwarp();
    }
  }

  const Call& call_;
  const Fabric& fabric_;
  const WeightsView& weights_;
  char* staging_;
  int first_row_;
  int lane_;
};

}  // namespace flashmoe::cuda_backend::hopper
