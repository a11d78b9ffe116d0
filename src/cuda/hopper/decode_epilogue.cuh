// Epilogue of a decode tile: what a consumer warp does with its 2 x 16 columns of up to `tokens` tokens. The
// accumulators hold columns by rows and tokens by columns; storing matrices transposed turns them into token rows in
// the staging area, 64 columns a warpgroup, from where they go to the intermediate, or to where each result goes.
#pragma once

#include <cstdint>

#include "cuda/fabric.cuh"
#include "cuda/groups.cuh"
#include "cuda/hopper/activate.cuh"
#include "cuda/hopper/block.cuh"
#include "cuda/hopper/wgmma.cuh"
#include "cuda/hopper/result_place.cuh"
#include "flashmoe/views.hpp"

namespace flashmoe::cuda_backend::hopper {

/// Columns of the tile in accumulators `half` (0: first, 1: second) of a warpgroup's thread: 128 * half + 64 *
/// warpgroup on. Gated up tiles: first holds gate columns, second the up columns of the same units.
template <DType dtype, int tokens>
class DecodeEpilogue {
 public:
  using Sums = Accumulators<tokens>;

  /// `warp`: of the consumer warps. As Epilogue, made for one tile.
  __device__ DecodeEpilogue(const Call& call, const Fabric& fabric, const WeightsView& weights, BlockMemory& block,
                            int warp)
      : call_(call), fabric_(fabric), weights_(weights), block_(block), warp_(warp) {
    lane_ = fresh_lane();
  }

  /// Up tile `tile`, and the one after it if the product is wide, as gated ones are: see store_deep_up(). `tile` is a function, as
  /// in Epilogue.
  template <class TileOf>
  __device__ __forceinline__ void store_up(const TaskSlot& slot, const TileOf& tile, Sums& first, Sums& second) const {
    const Geometry& g = call_.geometry();
    if (call_.math.weight_on_input) {
      weigh(slot, first);
      weigh(slot, second);
    }
    if (call_.math.up_bias) {
      const int begin = first_up_column(g, slot.task, tile());
      const bool gated = call_.math.gated;
      const float* bias = weights_.up_bias + std::int64_t{slot.local_expert} * (gated ? 2 : 1) * g.intermediate;
      add_bias(first, bias, begin + column(0), g.intermediate);
      if (gated) {
        add_bias(second, bias + g.intermediate, begin + column(0), g.intermediate);
      } else {
        add_bias(second, bias, begin + column(1), g.intermediate);
      }
    }
    with_activation(call_.math.activation, [&](auto activation) { activate<activation.value>(first, second); });
    const int begin = first_up_column(g, slot.task, tile());
    char* const rows = call_.intermediate_row(slot.task.index, 0) + std::int64_t{begin} * 2;
    const auto row_of = [&](int row) { return rows + std::int64_t{row} * g.intermediate * 2; };
    await_warpgroup();
    store(slot, first, 0, row_of, g.intermediate - begin);
    if (!call_.math.gated && is_wide(slot, tile())) store(slot, second, 1, row_of, g.intermediate - begin);
  }

  /// Of a deep gated tile a thread has one unit, gate in the even pairs of accumulators, up in the odd ones.
  __device__ __forceinline__ void store_deep_up(const TaskSlot& slot, int tile, Sums& d) const {
    const Geometry& g = call_.geometry();
    const int begin = first_up_column(g, slot.task, tile);
    if (call_.math.weight_on_input) weigh(slot, d);
    if (call_.math.up_bias) {
      const int unit = begin + warp_ * 8 + lane_ / 4;
      const float* bias = weights_.up_bias + std::int64_t{slot.local_expert} * 2 * g.intermediate + unit;
      const float gate = unit < g.intermediate ? bias[0] : 0.0f;
      const float up = unit < g.intermediate ? bias[g.intermediate] : 0.0f;
#pragma unroll
      for (int i = 0; i < 4 * kGroups; ++i) d[i] += i % 4 < 2 ? gate : up;
    }
    with_activation(call_.math.activation, [&](auto activation) {
      const auto alpha = static_cast<float>(call_.math.swiglu_alpha);
      const auto limit = static_cast<float>(call_.math.swiglu_limit);
#pragma unroll
      for (int i = 0; i < 4 * kGroups; i += 4) {
        d[i] = gate_up(activation.value, d[i], d[i + 2], alpha, limit);
        d[i + 1] = gate_up(activation.value, d[i + 1], d[i + 3], alpha, limit);
      }
    });
    if constexpr (kGroups == 2) {
      if (slot.tagged) return store_tagged(slot, d, begin);
    }
    char* const rows = call_.intermediate_row(slot.task.index, 0) + std::int64_t{begin} * 2;
    await_warpgroup();
    store_half(slot, d, [&](int row) { return rows + std::int64_t{row} * g.intermediate * 2; }, g.intermediate - begin);
  }

  /// Down tile `tile`, and the one after it if the product is wide: the second accumulators hold nothing otherwise.
  __device__ __forceinline__ void store_down(const TaskSlot& slot, int tile, Sums& first, Sums& second) const {
    const Geometry& g = call_.geometry();
    const bool wide = is_wide(slot, tile);
    const int begin = tile * kDownColumns;
    const int columns = wide ? g.hidden - begin : min(g.hidden - begin, kDownColumns);
    if (call_.math.down_bias) {
      const float* bias = weights_.down_bias + std::int64_t{slot.local_expert} * g.hidden;
      add_bias(first, bias, begin + column(0), g.hidden);
      add_bias(second, bias, begin + column(1), g.hidden);
    }
    if (call_.pre_reduced()) {
      keep_partials(slot, first, begin + column(0));
      if (wide) keep_partials(slot, second, begin + column(1));
    } else if (call_.lined()) {
      push_lines(slot, tile, wide, first, second, columns);
    } else {
      const auto row_of = [&](int row) { return reinterpret_cast<char*>(slot.rows[row]) + std::int64_t{begin} * 2; };
      await_warpgroup();
      store(slot, first, 0, row_of, columns);
      if (wide) store(slot, second, 1, row_of, columns);
    }
  }

  /// Down tiles from `tile` on, in lines.
  __device__ __forceinline__ void store_quad(const TaskSlot& slot, int tile, Sums (&d)[kQuadTiles]) const {
    static_assert(kGroups == 1);
    const int hidden = call_.geometry().hidden;
    const int begin = tile * kDownColumns;
    if (call_.math.down_bias) {
      const float* bias = weights_.down_bias + std::int64_t{slot.local_expert} * hidden;
#pragma unroll
      for (int i = 0; i < kQuadTiles; ++i) add_bias(d[i], bias, begin + i * kDownColumns + column(0), hidden);
    }
    constexpr int kRowBytes = kQuadTiles * kDownColumns * 2 + 16;  // rows start in different banks
    static_assert(kQuadRows * kRowBytes <= kConsumerWarps * kStagingBytes);
    char* const staging = block_.staging[0];
    await_consumers();
    char* const mine = staging + lane_ % 8 * kRowBytes + warpgroup() * kGroupColumns * 2 + (warp_ % 4 * 2 + lane_ / 8 % 2) * 16;
#pragma unroll
    for (int i = 0; i < kQuadTiles; ++i) {
      store_matrices_transposed(shared_address(mine + i * kDownColumns * 2), round_pair<dtype>(d[i][0], d[i][1]),
                                round_pair<dtype>(d[i][2], d[i][3]));
    }
    await_consumers();
    const std::size_t at = bytes_of_lines_before(call_, slot.task, tile);
    const std::size_t tile_lines = bytes_of_lines_before(call_, slot.task, static_cast<int>(slot.task.tile) + 1);
    push_staged_tiles<kQuadTiles>(slot, 0, static_cast<int>(slot.num_rows), kRowBytes, at, tile_lines, hidden - begin);
    await_consumers();
  }

 private:
  static constexpr int kGroups = tokens / 8;  ///< of 8 tokens; four accumulators each
  static constexpr int kGroupColumns = 64;    ///< of a warpgroup and half
  static constexpr int kRowBytes = kGroupColumns * 2;
  static constexpr int kStagedTokens = 4 * kStagingBytes / kRowBytes;  ///< that a warpgroup's staging area holds

  __device__ int warpgroup() const { return warp_ / 4; }
  /// Column of the tile of the thread's first accumulator; the third of each group is 8 columns on.
  __device__ int column(int half) const {
    return half * (kTileColumns / 2) + warpgroup() * kGroupColumns + warp_ % 4 * 16 + lane_ / 4;
  }
  /// Token of the first accumulator of a group.
  __device__ int token(int group) const { return 8 * group + lane_ % 4 * 2; }

  __device__ __forceinline__ void weigh(const TaskSlot& slot, Sums& d) const {
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const float even = slot.weights[token(group)];
      const float odd = slot.weights[token(group) + 1];
      d[4 * group] *= even;
      d[4 * group + 1] *= odd;
      d[4 * group + 2] *= even;
      d[4 * group + 3] *= odd;
    }
  }

  /// bias[column] and bias[column + 8]; columns from `limit` on have none.
  __device__ __forceinline__ static void add_bias(Sums& d, const float* bias, int column, int limit) {
    const float low = column < limit ? bias[column] : 0.0f;
    const float high = column + 8 < limit ? bias[column + 8] : 0.0f;
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      d[4 * group] += low;
      d[4 * group + 1] += low;
      d[4 * group + 2] += high;
      d[4 * group + 3] += high;
    }
  }

  template <Activation activation>
  __device__ __forceinline__ void activate(Sums& first, Sums& second) const {
    if (call_.math.gated) {
      const auto alpha = static_cast<float>(call_.math.swiglu_alpha);
      const auto limit = static_cast<float>(call_.math.swiglu_limit);
#pragma unroll
      for (int i = 0; i < 4 * kGroups; ++i) first[i] = gate_up(activation, first[i], second[i], alpha, limit);
    } else if constexpr (activation != Activation::swiglu_clamped) {
#pragma unroll
      for (int i = 0; i < 4 * kGroups; ++i) {
        first[i] = flashmoe::activate(activation, first[i]);
        second[i] = flashmoe::activate(activation, second[i]);
      }
    }
  }

  /// Two groups of tokens, 16 columns of this warp, rounded, as rows of tokens: lane l stores 8 columns, from 8 * (l /
  /// 8 % 2) on, of token l % 8 of group l / 16, to `address`.
  __device__ __forceinline__ static void stage_pair(const Sums& d, int group, std::uint32_t address) {
    const int at = 4 * group;
    store_matrices_transposed(address, round_pair<dtype>(d[at], d[at + 1]), round_pair<dtype>(d[at + 2], d[at + 3]),
                              round_pair<dtype>(d[at + 4], d[at + 5]), round_pair<dtype>(d[at + 6], d[at + 7]));
  }
  /// Where of stage_pair()'s 16 tokens and 16 columns this lane stores.
  __device__ int staged_token() const { return lane_ / 16 * 8 + lane_ % 8; }
  __device__ int staged_chunk() const { return warp_ % 4 * 2 + lane_ / 8 % 2; }

  /// The warpgroup's 64 columns of `half` to row_of(token), 128 bytes of each row; the tile has `columns`.
  template <class RowOf>
  __device__ __forceinline__ void store(const TaskSlot& slot, const Sums& d, int half, const RowOf& row_of,
                                        int columns) const {
    char* const staging = block_.staging[4 * warpgroup()];
    const auto num_rows = static_cast<int>(slot.num_rows);
    const int first_column = half * (kTileColumns / 2) + warpgroup() * kGroupColumns;
    const int chunk = lane_ % 8;
#pragma unroll
    for (int begin = 0; begin < tokens; begin += kStagedTokens) {
      if (begin >= num_rows) continue;
#pragma unroll
      for (int token = begin; token < tokens && token < begin + kStagedTokens; token += 16) {
        if (token >= num_rows) continue;
        const int row = token - begin + staged_token();
        stage_pair(d, token / 8, shared_address(staging + row * kRowBytes + ((staged_chunk() ^ (row % 8)) << 4)));
      }
      await_warpgroup();
      if (first_column + chunk * 8 < columns) {
        const int end = min(num_rows - begin, kStagedTokens);
#pragma unroll 1
        for (int row = warp_ % 4 * 4 + lane_ / 8; row < end; row += 16) {
          *reinterpret_cast<uint4*>(row_of(begin + row) + first_column * 2 + chunk * 16) =
              *reinterpret_cast<const uint4*>(staging + row * kRowBytes + ((chunk ^ (row % 8)) << 4));
        }
      }
      await_warpgroup();
    }
  }

  /// The same of a deep gated tile: 32 columns of the warpgroup, 8 of each warp, 64 bytes of each row. All rows at once.
  template <class RowOf>
  __device__ __forceinline__ void store_half(const TaskSlot& slot, const Sums& d, const RowOf& row_of, int columns) const {
    static_assert(tokens <= 2 * kStagedTokens);
    char* const staging = block_.staging[4 * warpgroup()];
    const auto num_rows = static_cast<int>(slot.num_rows);
    const auto place = [&](int row, int chunk) { return staging + row * kRowBytes / 2 + ((chunk ^ (row / 2 % 4)) << 4); };
    const int first_column = warpgroup() * kGroupColumns / 2;
    const int chunk = lane_ % 4;
#pragma unroll
    for (int token = 0; token < tokens; token += 16) {
      if (token >= num_rows) continue;
      const int at = token / 2;
      store_matrices_transposed(shared_address(place(token + lane_ % 16, warp_ % 4)), round_pair<dtype>(d[at], d[at + 1]),
                                round_pair<dtype>(d[at + 4], d[at + 5]));
    }
    await_warpgroup();
    if (first_column + chunk * 8 < columns) {
#pragma unroll 1
      for (int row = warp_ % 4 * 8 + lane_ / 4; row < num_rows; row += 32) {
        *reinterpret_cast<uint4*>(row_of(row) + first_column * 2 + chunk * 16) =
            *reinterpret_cast<const uint4*>(place(row, chunk));
      }
    }
    await_warpgroup();
  }

  /// The same in tagged packets. Lanes four apart have units that follow each other, of two rows in the first two accumulators.
  /// The warp's two packets of a row are one sector.
  __device__ __forceinline__ void store_tagged(const TaskSlot& slot, const Sums& d, int begin) const {
    static_assert(TaggedPacket::kElements == 4 && kTaggedRows <= 8);
    std::uint32_t units[4];  // of an even row in the lower halves, of the next row in the upper ones
#pragma unroll
    for (int i = 0; i < 4; ++i) units[i] = __shfl_down_sync(WarpGroup::kAll, round_pair<dtype>(d[0], d[1]), 4 * i);
    const int unit = begin + warp_ * 8 + lane_ / 4;
    if (lane_ / 4 % 4 != 0 || unit >= call_.geometry().intermediate) return;
    const std::uint64_t tag = line_tag(call_.generation, call_.epoch);
#pragma unroll
    for (int odd = 0; odd < 2; ++odd) {
      const auto row = static_cast<std::uint32_t>(token(0) + odd);
      if (row >= slot.num_rows) continue;
      const std::uint32_t halves = odd == 0 ? 0x5410 : 0x7632;
      store_16(call_.tagged_row(slot.task.index, row) + unit / TaggedPacket::kElements,
               make_uint4(__byte_perm(units[0], units[1], halves), __byte_perm(units[2], units[3], halves),
                          static_cast<std::uint32_t>(tag), static_cast<std::uint32_t>(tag >> 32)));
    }
  }

  __device__ __forceinline__ void keep_partials(const TaskSlot& slot, const Sums& d, int column) const {
    const int hidden = call_.geometry().hidden;
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        if (token(group) + odd >= static_cast<int>(slot.num_rows)) continue;
        auto* row = reinterpret_cast<float*>(slot.rows[token(group) + odd]);
        if (column < hidden) row[column] = d[4 * group + odd];
        if (column + 8 < hidden) row[column + 8] = d[4 * group + 2 + odd];
      }
    }
  }

  /// Lines want whole rows of a tile: both warpgroups stage 16 tokens at a time, then each warp sends some of their rows.
  __device__ __forceinline__ void push_lines(const TaskSlot& slot, int tile, bool wide, const Sums& first, const Sums& second,
                                             int columns) const {
    constexpr int kLineRowBytes = kTileColumns * 2 + 16;  // rows start in different banks
    static_assert(16 * kLineRowBytes <= kConsumerWarps * kStagingBytes);
    char* const staging = block_.staging[0];
    const auto num_rows = static_cast<int>(slot.num_rows);
    const std::size_t at = bytes_of_lines_before(call_, slot.task, tile);
    const std::size_t tile_lines = bytes_of_lines_before(call_, slot.task, static_cast<int>(slot.task.tile) + 1);
    await_consumers();
#pragma unroll
    for (int group = 0; group < kGroups; group += 2) {
      if (8 * group >= num_rows) continue;
      char* const mine = staging + staged_token() * kLineRowBytes + warpgroup() * kRowBytes + staged_chunk() * 16;
      stage_pair(first, group, shared_address(mine));
      if (wide) stage_pair(second, group, shared_address(mine + kTileColumns));
      await_consumers();
      push_staged_tiles<2>(slot, 8 * group, min(num_rows - 8 * group, 16), kLineRowBytes, at, tile_lines, columns);
      await_consumers();
    }
  }

  /// `tiles` of rows from `first_row` on, which lie in the staging area; `columns`: of all of them together. Each warp sends some.
  template <int tiles>
  __device__ __forceinline__ void push_staged_tiles(const TaskSlot& slot, int first_row, int num_rows, int row_bytes,
                                                    std::size_t at, std::size_t tile_lines, int columns) const {
#pragma unroll 1
    for (int part = warp_; part < tiles * num_rows; part += kConsumerWarps) {  // a tile of a row
      const int staged = part / tiles;
      const int tile = part % tiles;
      const int valid = min(columns - tile * kDownColumns, kDownColumns);
      if (valid <= 0) continue;
      const std::uint64_t place = slot.rows[first_row + staged];
      fabric_.put_row_lines(WarpGroup{}, rank_of_place(place), offset_of_place(place) + at + tile * tile_lines,
                            block_.staging[0] + staged * row_bytes + tile * kDownColumns * 2, valid / 4,
                            line_tag(call_.generation, call_.epoch));
    }
  }

  /// The warpgroup's part of the staging area may be written (the tile before may have used it otherwise), is complete,
  /// or has been read. Names are constants: ptxas would set all 16 aside.
  __device__ void await_warpgroup() const {
    if (warpgroup() == 0) {
      named_barrier<1, 128>();
    } else {
      named_barrier<2, 128>();
    }
  }

  const Call& call_;
  const Fabric& fabric_;
  const WeightsView& weights_;
  BlockMemory& block_;
  int warp_;
  int lane_;
};

}  // namespace flashmoe::cuda_backend::hopper
