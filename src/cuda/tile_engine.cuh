// The portable tile engine: mma.sync on sm_80 and later, any dtype but fp32, operands by cp.async through a ring of
// stages. 8 warps compute 64 rows x 128 columns; a warp 32 x 32. k advances 128 bytes a stage.
#pragma once

#include <cstdint>

#include "actors/call.hpp"
#include "actors/task.hpp"
#include "core/activation.hpp"
#include "cuda/element.cuh"
#include "cuda/fabric.cuh"
#include "cuda/groups.cuh"
#include "cuda/mma.cuh"
#include "cuda/reduce.cuh"
#include "cuda/tile_shape.hpp"
#include "flashmoe/views.hpp"

namespace flashmoe::cuda_backend {

inline constexpr int kStages = 3;

/// Shared memory of one processor.
struct TileMemory {
  // Stages of operands; between products the staging area of results: [kTileRows][kTileColumns] elements.
  alignas(128) char stages[kStages][(kTileRows + kTileColumns) * kStageRowBytes];
  const char* rows[kTileRows];       ///< where each A row starts, null beyond the m-block
  float weights[kTileRows];          ///< routing weight on the input, 1 where there is none
};
static_assert(sizeof(TileMemory::stages) >= kTileRows * kTileColumns * sizeof(double));

template <DType dtype>
class TileEngine {
 public:
  using Stored = typename Element<dtype>::Stored;
  using Accumulator = typename Element<dtype>::Accumulator;

  __device__ TileEngine(TileMemory& memory, const WeightsView& weights) : memory_(memory), weights_(weights) {}

  __device__ void up(const ProcessorGroup& group, const Call& call, const MBlock& block, std::uint32_t index,
                     int tile) {
    const Geometry& g = call.geometry();
    const bool gated = call.math.gated;
    const int first = tile * g.tile.up_columns;
    const auto* matrix = static_cast<const Stored*>(weights_.up) +
                         std::int64_t{block.local_expert} * (gated ? 2 : 1) * g.intermediate * g.hidden;
    locate_rows(group, call, block);
    Product product;
    multiply(group, product, g.hidden, [&](int column) -> const Stored* {
      // Gate and up columns alternate by 8, so that one thread holds both of each pair.
      const int unit = gated ? first + column / 16 * 8 + column % 8 : first + column;
      if (unit >= g.intermediate) return nullptr;
      const int row = gated && (column / 8) % 2 == 1 ? g.intermediate + unit : unit;
      return matrix + std::int64_t{row} * g.hidden;
    });
    if (gated) {
      store_gated(call, block, index, first, product);
    } else {
      store_plain(call, block, index, first, product);
    }
  }

  __device__ void down(const ProcessorGroup& group, const Call& call, const Fabric& fabric, const MBlock& block,
                       std::uint32_t index, int tile) {
    const Geometry& g = call.geometry();
    const int first = tile * g.tile.down_columns;
    const auto* matrix = static_cast<const Stored*>(weights_.down) +
                         std::int64_t{block.local_expert} * g.hidden * g.intermediate;
    if (group.index() < kTileRows) {
      const auto row = static_cast<std::uint32_t>(group.index());
      memory_.rows[row] = row < block.num_rows ? call.intermediate_row(index, row) : nullptr;
    }
    group.sync();
    Product product;
    multiply(group, product, g.intermediate, [&](int column) -> const Stored* {
      return first + column < g.hidden ? matrix + std::int64_t{first + column} * g.intermediate : nullptr;
    });
    add_down_bias(call, block, first, product);
    if (call.pre_reduced()) {
      keep_partials(call, block, first, product);
    } else {
      stage_results(group, product);
      push_results(call, fabric, block, tile);
    }
  }

  /// One warp a slot.
  __device__ void reduce(const ProcessorGroup&, const Call& call, const Fabric& fabric, std::uint32_t wave_slot,
                         std::uint32_t first_slot, std::uint32_t num_slots) {
    const auto slot = static_cast<std::uint32_t>(threadIdx.x / 32);
    if (slot < num_slots) reduce_slot<dtype>(call, fabric, wave_slot, first_slot + slot);
  }

 private:
  /// Accumulators of one thread: [two 16-row tiles][four 8-column tiles][row half * 2 + column of the pair].
  using Product = Accumulator[2][4][4];

  __device__ static int warp_row() { return static_cast<int>(threadIdx.x / 32) / 4 * 32; }
  __device__ static int warp_column() { return static_cast<int>(threadIdx.x / 32) % 4 * 32; }
  __device__ static int lane() { return static_cast<int>(threadIdx.x % 32); }

  /// Calls f(row, column, value of the column, value of the next) for every pair a thread holds.
  template <class Function>
  __device__ static void for_each_pair(const Product& product, const Function& function) {
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = warp_row() + m * 16 + half * 8 + lane() / 4;
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          function(row, warp_column() + n * 8 + lane() % 4 * 2, product[m][n][2 * half], product[m][n][2 * half + 1]);
        }
      }
    }
  }

  __device__ void locate_rows(const ProcessorGroup& group, const Call& call, const MBlock& block) {
    if (group.index() < kTileRows) {
      const auto row = static_cast<std::uint32_t>(group.index());
      memory_.rows[row] = nullptr;
      memory_.weights[row] = 1.0f;
      if (row < block.num_rows) {
        const RowOrigin origin = row_origin(block, row);
        const RouteImage image = call.image(static_cast<int>(origin.wave_slot));
        memory_.rows[row] = token_row(call, origin.wave_slot, image.entry(origin.entry));
        if (call.math.weight_on_input) memory_.weights[row] = image.weights(image.num_entries())[origin.entry];
      }
    }
    group.sync();
  }

  /// 16 bytes of k of one row into a stage; zeros where the row or this part of it does not exist.
  __device__ static void fetch(std::uint32_t stage, int row, int chunk, const char* source, std::int64_t at,
                               std::int64_t row_bytes) {
    const bool exists = source != nullptr && at < row_bytes;
    fetch_chunk(stage, row, chunk, exists ? source + at : nullptr);
  }

  /// product[m][n] = sum over k of rows[m][k] * column_of(n)[k]. Every row and column is computed, absent ones as 0.
  template <class ColumnOf>
  __device__ void multiply(const ProcessorGroup& group, Product& product, int k, const ColumnOf& column_of) {
    const std::int64_t row_bytes = std::int64_t{k} * static_cast<std::int64_t>(sizeof(Stored));
    const int num_chunks = static_cast<int>((row_bytes + kStageRowBytes - 1) / kStageRowBytes);
    const auto base = static_cast<std::uint32_t>(__cvta_generic_to_shared(memory_.stages[0]));
    constexpr std::uint32_t kStageBytes = sizeof(memory_.stages[0]);
    constexpr std::uint32_t kColumnsAt = kTileRows * kStageRowBytes;

    // A thread fetches the same 16 bytes of k of rows and columns 32 apart.
    const int chunk = group.index() % 8;
    const int first = group.index() / 8;
    const char* rows[kTileRows / 32];
    const char* columns[kTileColumns / 32];
#pragma unroll
    for (int i = 0; i < kTileRows / 32; ++i) rows[i] = memory_.rows[first + i * 32];
#pragma unroll
    for (int i = 0; i < kTileColumns / 32; ++i) {
      columns[i] = reinterpret_cast<const char*>(column_of(first + i * 32));
    }
    const auto fetch_stage = [&](int index) {
      if (index < num_chunks) {
        const std::uint32_t stage = base + static_cast<std::uint32_t>(index % kStages) * kStageBytes;
        const std::int64_t at = std::int64_t{index} * kStageRowBytes + chunk * 16;
#pragma unroll
        for (int i = 0; i < kTileRows / 32; ++i) fetch(stage, first + i * 32, chunk, rows[i], at, row_bytes);
#pragma unroll
        for (int i = 0; i < kTileColumns / 32; ++i) {
          fetch(stage + kColumnsAt, first + i * 32, chunk, columns[i], at, row_bytes);
        }
      }
      asm volatile("cp.async.commit_group;" ::: "memory");
    };

#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int n = 0; n < 4; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) product[m][n][i] = 0;
      }
    }
    for (int index = 0; index < kStages - 1; ++index) fetch_stage(index);
    for (int index = 0; index < num_chunks; ++index) {
      asm volatile("cp.async.wait_group %0;" ::"n"(kStages - 2) : "memory");
      group.sync();  // the stage is here for all, and nobody reads the one fetched into next
      fetch_stage(index + kStages - 1);
      multiply_stage(product, base + static_cast<std::uint32_t>(index % kStages) * kStageBytes,
                     base + static_cast<std::uint32_t>(index % kStages) * kStageBytes + kColumnsAt);
    }
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    group.sync();
  }

  __device__ static void multiply_stage(Product& product, std::uint32_t rows, std::uint32_t columns) {
    using F = Fragments<dtype>;
    const auto l = static_cast<std::uint32_t>(lane());
#pragma unroll
    for (std::uint32_t step = 0; step < 4; ++step) {
      typename F::A a[2];
      typename F::B b[2];
#pragma unroll
      for (int m = 0; m < 2; ++m) F::load_a(a[m], rows, static_cast<std::uint32_t>(warp_row() + m * 16), step, l);
#pragma unroll
      for (int n = 0; n < 2; ++n) F::load_b(b[n], columns, static_cast<std::uint32_t>(warp_column() + n * 16), step, l);
#pragma unroll
      for (int m = 0; m < 2; ++m) {
#pragma unroll
        for (int n = 0; n < 4; ++n) F::multiply(product[m][n], a[m], b[n / 2], n % 2);
      }
    }
  }

  __device__ static void store_pair(void* row, int column, Accumulator low, Accumulator high) {
    struct alignas(2 * sizeof(Stored)) Pair {
      Stored low, high;
    };
    *reinterpret_cast<Pair*>(static_cast<Stored*>(row) + column) = {Element<dtype>::round(low),
                                                                    Element<dtype>::round(high)};
  }

  __device__ Accumulator before_activation(const Call& call, const MBlock& block, int row, int weight_row,
                                           Accumulator value) const {
    if (call.math.weight_on_input) value *= static_cast<Accumulator>(memory_.weights[row]);
    if (call.math.up_bias) {
      const int columns = (call.math.gated ? 2 : 1) * call.geometry().intermediate;
      value += static_cast<Accumulator>(weights_.up_bias[std::int64_t{block.local_expert} * columns + weight_row]);
    }
    return value;
  }

  __device__ void store_gated(const Call& call, const MBlock& block, std::uint32_t index, int first,
                              const Product& product) const {
    const int intermediate = call.geometry().intermediate;
    const auto alpha = static_cast<Accumulator>(call.math.swiglu_alpha);
    const auto limit = static_cast<Accumulator>(call.math.swiglu_limit);
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = warp_row() + m * 16 + half * 8 + lane() / 4;
        if (row >= static_cast<int>(block.num_rows)) continue;
#pragma unroll
        for (int pair = 0; pair < 2; ++pair) {
          const int column = first + warp_column() / 2 + pair * 8 + lane() % 4 * 2;
          if (column >= intermediate) continue;
          Accumulator values[2];
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const Accumulator gate =
                before_activation(call, block, row, column + i, product[m][2 * pair][2 * half + i]);
            const Accumulator up = before_activation(call, block, row, intermediate + column + i,
                                                     product[m][2 * pair + 1][2 * half + i]);
            values[i] = gate_up(call.math.activation, gate, up, alpha, limit);
          }
          store_pair(call.intermediate_row(index, static_cast<std::uint32_t>(row)), column, values[0], values[1]);
        }
      }
    }
  }

  __device__ void store_plain(const Call& call, const MBlock& block, std::uint32_t index, int first,
                              const Product& product) const {
    for_each_pair(product, [&](int row, int tile_column, Accumulator low, Accumulator high) {
      const int column = first + tile_column;
      if (row >= static_cast<int>(block.num_rows) || column >= call.geometry().intermediate) return;
      low = activate(call.math.activation, before_activation(call, block, row, column, low));
      high = activate(call.math.activation, before_activation(call, block, row, column + 1, high));
      store_pair(call.intermediate_row(index, static_cast<std::uint32_t>(row)), column, low, high);
    });
  }

  __device__ void add_down_bias(const Call& call, const MBlock& block, int first, Product& product) const {
    if (!call.math.down_bias) return;
    const int hidden = call.geometry().hidden;
    const float* bias = weights_.down_bias + std::int64_t{block.local_expert} * hidden;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const int column = first + warp_column() + n * 8 + lane() % 4 * 2;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const auto value = column + i < hidden ? static_cast<Accumulator>(bias[column + i]) : Accumulator{0};
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          product[m][n][i] += value;
          product[m][n][2 + i] += value;
        }
      }
    }
  }

  __device__ static void keep_partials(const Call& call, const MBlock& block, int first, const Product& product) {
    for_each_pair(product, [&](int row, int tile_column, Accumulator low, Accumulator high) {
      if (row >= static_cast<int>(block.num_rows) || first + tile_column >= call.geometry().hidden) return;
      const RowOrigin origin = row_origin(block, static_cast<std::uint32_t>(row));
      auto* target = reinterpret_cast<Accumulator*>(
          call.partial_row(static_cast<int>(origin.wave_slot), origin.entry)) + first + tile_column;
      target[0] = low;
      target[1] = high;
    });
  }

  /// Rounded results into the stages' memory, [kTileRows][kTileColumns].
  __device__ void stage_results(const ProcessorGroup& group, const Product& product) {
    for_each_pair(product, [&](int row, int column, Accumulator low, Accumulator high) {
      store_pair(memory_.stages[0] + row * kTileColumns * static_cast<int>(sizeof(Stored)), column, low, high);
    });
    group.sync();
  }

  /// Each warp pushes rows to their tokens' ranks.
  __device__ void push_results(const Call& call, const Fabric& fabric, const MBlock& block, int tile) {
    const Geometry& g = call.geometry();
    const WarpGroup warp;
    const int first = tile * g.tile.down_columns;
    const int columns = g.hidden - first < g.tile.down_columns ? g.hidden - first : g.tile.down_columns;
    const std::int64_t bytes = std::int64_t{columns} * g.element_bytes;
    for (std::uint32_t row = threadIdx.x / 32; row < block.num_rows; row += ProcessorGroup::kThreads / 32) {
      const RowOrigin origin = row_origin(block, row);
      const RouteEntry entry = call.image(static_cast<int>(origin.wave_slot)).entry(origin.entry);
      const int source = call.source_of(origin.wave_slot);
      const int ring_slot = call.ring_slot_of(origin.wave_slot);
      const char* values = memory_.stages[0] + row * kTileColumns * sizeof(Stored);
      if (call.lined()) {
        fabric.put_row_lines(warp, source, call.heap.lined_result(call.epoch, entry.return_row, tile), values,
                             bytes / 8, line_tag(call.generation, call.epoch));
      } else {
        fabric.put_row(warp, source,
                       call.heap.result_cell(ring_slot, entry.return_row) +
                           static_cast<std::size_t>(first) * sizeof(Stored),
                       values, bytes);
      }
    }
  }

  TileMemory& memory_;
  const WeightsView& weights_;
};

}  // namespace flashmoe::cuda_backend
