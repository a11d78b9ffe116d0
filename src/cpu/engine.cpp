#include "cpu/engine.hpp"

#include <algorithm>
#include <cstring>

#include "core/activation.hpp"
#include "core/arena.hpp"
#include "core/numeric.hpp"
#include "cpu/gemm.hpp"

namespace flashmoe::cpu {

namespace {

/// Widens `count` stored elements to the accumulator type, as operands of a matrix product.
void load_operands(DType dtype, const void* data, std::int64_t count, float* out) {
  load_floats(dtype, data, count, out);
  if (dtype == DType::tf32) {
    for (std::int64_t i = 0; i < count; ++i) out[i] = round_to_tf32(out[i]);
  }
}
void load_operands(DType, const void* data, std::int64_t count, double* out) {
  std::memcpy(out, data, static_cast<std::size_t>(count) * sizeof(double));
}

void store_rounded(DType dtype, const float* values, std::int64_t count, void* out) {
  store_floats(dtype, values, count, out);
}
void store_rounded(DType, const double* values, std::int64_t count, void* out) {
  std::memcpy(out, values, static_cast<std::size_t>(count) * sizeof(double));
}

float route_weight(const Call& call, RowOrigin origin) {
  const RouteImage image = call.image(static_cast<int>(origin.wave_slot));
  return image.weights(image.num_entries())[origin.entry];
}

const char* element(const void* data, std::int64_t index, int element_bytes) {
  return static_cast<const char*>(data) + index * element_bytes;
}

/// Buffers and tile arithmetic in one accumulator type.
template <class T>
struct TileMath {
  std::vector<T> rows;     // [tile.most_rows()][k]
  std::vector<T> weights;  // [columns][k]
  std::vector<T> product;  // [tile.most_rows()][columns]
  std::vector<T> values;   // one row of an epilogue

  explicit TileMath(const Geometry& g) {
    const auto k = static_cast<std::size_t>(std::max(g.hidden, g.intermediate));
    const auto columns = static_cast<std::size_t>(std::max(2 * g.tile.up_columns, g.tile.down_columns));
    rows.resize(static_cast<std::size_t>(g.tile.most_rows()) * k);
    weights.resize(columns * k);
    product.resize(static_cast<std::size_t>(g.tile.most_rows()) * columns);
    values.resize(std::max(columns, static_cast<std::size_t>(g.hidden)));
  }

  /// Rows of the block, and zeros in the place of absent ones up to the end of their group: all that is multiplied.
  /// `row_of(row)` gives a stored row of k elements. Returns how many rows that are.
  template <class RowOf>
  int load_rows(const Geometry& g, DType dtype, std::uint32_t num_rows, int k, const RowOf& row_of) {
    const int end = std::min(g.tile.most_rows(), static_cast<int>(align_up(num_rows, kRowGroup)));
    for (std::uint32_t row = 0; row < num_rows; ++row) {
      load_operands(dtype, row_of(row), k, rows.data() + static_cast<std::int64_t>(row) * k);
    }
    std::fill(rows.begin() + static_cast<std::ptrdiff_t>(num_rows) * k,
              rows.begin() + static_cast<std::ptrdiff_t>(end) * k, T{0});
    return end;
  }

  /// Weight rows [first, first + count) of a [..][k] matrix into columns [column, ...) of the tile.
  void load_weights(const Geometry& g, DType dtype, const void* matrix, std::int64_t first, int count, int k,
                    int column) {
    load_operands(dtype, element(matrix, first * k, g.element_bytes), std::int64_t{count} * k,
                  weights.data() + std::int64_t{column} * k);
  }

  /// Columns beyond the matrix's edge, so that every tile of a phase has one shape.
  void clear_weights(int first_column, int end_column, int k) {
    std::fill(weights.begin() + static_cast<std::ptrdiff_t>(first_column) * k,
              weights.begin() + static_cast<std::ptrdiff_t>(end_column) * k, T{0});
  }
};

template <class T>
void compute_up(TileMath<T>& tile_math, const ExpertMath& math, const ExpertParameters& expert, const Call& call,
                const MBlock& block, std::uint32_t index, int tile) {
  const Geometry& g = call.geometry();
  const int first = tile * g.tile.up_columns;
  const int columns = std::min(g.tile.up_columns, g.intermediate - first);
  const int width = math.gated ? 2 * g.tile.up_columns : g.tile.up_columns;

  const int rows = tile_math.load_rows(g, math.dtype, block.num_rows, g.hidden, [&](std::uint32_t row) {
    const RowOrigin origin = row_origin(block, row);
    return token_row(call, origin.wave_slot, call.image(static_cast<int>(origin.wave_slot)).entry(origin.entry));
  });
  tile_math.load_weights(g, math.dtype, expert.up, first, columns, g.hidden, 0);
  tile_math.clear_weights(columns, g.tile.up_columns, g.hidden);
  if (math.gated) {
    tile_math.load_weights(g, math.dtype, expert.up, g.intermediate + first, columns, g.hidden, g.tile.up_columns);
    tile_math.clear_weights(g.tile.up_columns + columns, width, g.hidden);
  }
  multiply(rows, width, g.hidden, tile_math.rows.data(), tile_math.weights.data(), tile_math.product.data());

  const auto alpha = static_cast<T>(math.swiglu_alpha);
  const auto limit = static_cast<T>(math.swiglu_limit);
  for (std::uint32_t row = 0; row < block.num_rows; ++row) {
    const T scale = math.weight_on_input ? static_cast<T>(route_weight(call, row_origin(block, row))) : T{1};
    const T* first_half = tile_math.product.data() + static_cast<std::int64_t>(row) * width;
    const T* second_half = first_half + g.tile.up_columns;
    for (int column = 0; column < columns; ++column) {
      T gate = first_half[column];
      if (math.weight_on_input) gate *= scale;
      if (math.up_bias) gate += static_cast<T>(expert.up_bias[first + column]);
      if (!math.gated) {
        tile_math.values[static_cast<std::size_t>(column)] = activate(math.activation, gate);
        continue;
      }
      T up = second_half[column];
      if (math.weight_on_input) up *= scale;
      if (math.up_bias) up += static_cast<T>(expert.up_bias[g.intermediate + first + column]);
      tile_math.values[static_cast<std::size_t>(column)] = gate_up(math.activation, gate, up, alpha, limit);
    }
    store_rounded(math.dtype, tile_math.values.data(), columns,
                  call.intermediate_row(index, row) + std::int64_t{first} * g.element_bytes);
  }
}

/// `out`: [tile.most_rows()][tile.down_columns] of dtype; pre_reduced goes to call.partial_row unrounded instead.
template <class T>
void compute_down_tile(TileMath<T>& tile_math, const ExpertMath& math, const ExpertParameters& expert,
                       const Call& call, const MBlock& block, std::uint32_t index, int tile, char* out) {
  const Geometry& g = call.geometry();
  const int first = tile * g.tile.down_columns;
  const int columns = std::min(g.tile.down_columns, g.hidden - first);
  const int rows = tile_math.load_rows(g, math.dtype, block.num_rows, g.intermediate,
                                       [&](std::uint32_t row) { return call.intermediate_row(index, row); });
  tile_math.load_weights(g, math.dtype, expert.down, first, columns, g.intermediate, 0);
  tile_math.clear_weights(columns, g.tile.down_columns, g.intermediate);
  multiply(rows, g.tile.down_columns, g.intermediate, tile_math.rows.data(), tile_math.weights.data(),
           tile_math.product.data());
  for (std::uint32_t row = 0; row < block.num_rows; ++row) {
    T* values = tile_math.product.data() + static_cast<std::int64_t>(row) * g.tile.down_columns;
    for (int column = 0; math.down_bias && column < columns; ++column) {
      values[column] += static_cast<T>(expert.down_bias[first + column]);
    }
    if (call.pre_reduced()) {
      const RowOrigin origin = row_origin(block, row);
      std::memcpy(call.partial_row(static_cast<int>(origin.wave_slot), origin.entry) +
                      static_cast<std::size_t>(first) * sizeof(T),
                  values, static_cast<std::size_t>(columns) * sizeof(T));
    } else {
      store_rounded(math.dtype, values, columns, out + std::int64_t{row} * g.tile.down_columns * g.element_bytes);
    }
  }
}

template <class T>
std::int64_t sum_slot(TileMath<T>& tile_math, const ExpertMath& math, const Call& call, std::uint32_t wave_slot,
                      std::uint32_t slot, char* out) {
  const Geometry& g = call.geometry();
  const RouteImage image = call.image(static_cast<int>(wave_slot));
  const std::uint32_t* routes = call.slot_routes(static_cast<int>(wave_slot), slot);
  std::int64_t token = -1;
  std::fill_n(tile_math.values.begin(), g.hidden, T{0});
  for (int choice = 0; choice < g.top_k; ++choice) {
    if (routes[choice] == 0) continue;
    const std::uint32_t entry = routes[choice] - 1;
    token = image.entry(entry).return_row / static_cast<std::uint32_t>(g.top_k);
    const T weight = math.weight_on_input ? T{1} : static_cast<T>(route_weight(call, {wave_slot, entry}));
    const T* values = reinterpret_cast<const T*>(call.partial_row(static_cast<int>(wave_slot), entry));
    for (int column = 0; column < g.hidden; ++column) {
      tile_math.values[static_cast<std::size_t>(column)] += weight * values[column];
    }
  }
  if (token >= 0) store_rounded(math.dtype, tile_math.values.data(), g.hidden, out);
  return token;
}

}  // namespace

/// One of the two is used, by dtype.
struct Engine::Accumulators {
  std::unique_ptr<TileMath<float>> fp32;
  std::unique_ptr<TileMath<double>> fp64;
};

Engine::Engine(const Geometry& geometry, const ExpertMath& math, const ExpertSource& experts)
    : math_(math), experts_(experts), accumulators_(std::make_unique<Accumulators>()) {
  check_blas();
  if (math.dtype == DType::fp64) {
    accumulators_->fp64 = std::make_unique<TileMath<double>>(geometry);
  } else {
    accumulators_->fp32 = std::make_unique<TileMath<float>>(geometry);
  }
  out_.resize(static_cast<std::size_t>(geometry.tile.most_rows()) * static_cast<std::size_t>(geometry.tile.down_columns) *
              static_cast<std::size_t>(geometry.element_bytes));
  row_.resize(static_cast<std::size_t>(geometry.row_bytes()));
}
Engine::~Engine() = default;
Engine::Engine(Engine&&) noexcept = default;

void Engine::up(const SoloGroup&, const Call& call, const MBlock& block, std::uint32_t index, int tile) {
  const int expert_index = call.rank * call.geometry().num_local_experts + static_cast<int>(block.local_expert);
  const auto expert = experts_.expert(expert_index);
  if (accumulators_->fp64) {
    compute_up(*accumulators_->fp64, math_, *expert, call, block, index, tile);
  } else {
    compute_up(*accumulators_->fp32, math_, *expert, call, block, index, tile);
  }
}

void Engine::compute_down(const Call& call, const MBlock& block, std::uint32_t index, int tile) {
  const int expert_index = call.rank * call.geometry().num_local_experts + static_cast<int>(block.local_expert);
  const auto expert = experts_.expert(expert_index);
  if (accumulators_->fp64) {
    compute_down_tile(*accumulators_->fp64, math_, *expert, call, block, index, tile, out_.data());
  } else {
    compute_down_tile(*accumulators_->fp32, math_, *expert, call, block, index, tile, out_.data());
  }
}

std::int64_t Engine::reduce_slot(const Call& call, std::uint32_t wave_slot, std::uint32_t slot) {
  if (accumulators_->fp64) return sum_slot(*accumulators_->fp64, math_, call, wave_slot, slot, row_.data());
  return sum_slot(*accumulators_->fp32, math_, call, wave_slot, slot, row_.data());
}

}  // namespace flashmoe::cpu
