// The CPU tile engine: any dtype, tiles computed in fp32 (fp64 for fp64) on operands of the dtype's precision.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "actors/call.hpp"
#include "actors/group.hpp"
#include "core/expert_source.hpp"

namespace flashmoe::cpu {

/// Arithmetic of one processor. Rows are multiplied in whole groups, absent ones zero, so that a row's result is the
/// same wherever it lies. Not thread-safe: one per processor.
class Engine {
 public:
  Engine(const Geometry& geometry, const ExpertMath& math, const ExpertSource& experts);
  ~Engine();
  Engine(Engine&&) noexcept;

  void up(const SoloGroup& group, const Call& call, const MBlock& block, std::uint32_t index, int tile);

  template <class Fabric>
  void down(const SoloGroup& group, const Call& call, Fabric& fabric, const MBlock& block, std::uint32_t index,
            int tile) {
    compute_down(call, block, index, tile);
    for (std::uint32_t row = 0; row < block.num_rows; ++row) push_segment(group, call, fabric, block, row, tile);
  }

  template <class Fabric>
  void reduce(const SoloGroup& group, const Call& call, Fabric& fabric, std::uint32_t wave_slot,
              std::uint32_t first_slot, std::uint32_t num_slots) {
    const Geometry& g = call.geometry();
    const int source = call.source_of(wave_slot);
    const int ring_slot = call.ring_slot_of(wave_slot);
    for (std::uint32_t slot = first_slot; slot < first_slot + num_slots; ++slot) {
      const std::int64_t token = reduce_slot(call, wave_slot, slot);
      if (token < 0) continue;
      fabric.put_row(group, source, call.heap.result_cell(ring_slot, token, call.rank), row_.data(), g.row_bytes());
    }
  }

 private:
  struct Accumulators;

  /// Results of one down tile, rounded: out_ [tile.most_rows()][tile.down_columns] of dtype; pre_reduced: stored, not rounded.
  void compute_down(const Call& call, const MBlock& block, std::uint32_t index, int tile);
  /// The weighted sum of a slot's routes, rounded, in row_; returns the token's index in its wave, or -1 without routes.
  std::int64_t reduce_slot(const Call& call, std::uint32_t wave_slot, std::uint32_t slot);

  template <class Fabric>
  void push_segment(const SoloGroup& group, const Call& call, Fabric& fabric, const MBlock& block, std::uint32_t row,
                    int tile) {
    if (call.pre_reduced()) return;
    const Geometry& g = call.geometry();
    const RowOrigin origin = row_origin(block, row);
    const RouteEntry entry = call.image(static_cast<int>(origin.wave_slot)).entry(origin.entry);
    const int source = call.source_of(origin.wave_slot);
    const int ring_slot = call.ring_slot_of(origin.wave_slot);
    const int first_column = tile * g.tile.down_columns;
    const int columns = g.hidden - first_column < g.tile.down_columns ? g.hidden - first_column : g.tile.down_columns;
    const char* segment = out_.data() + std::int64_t{row} * g.tile.down_columns * g.element_bytes;
    if (call.lined()) {
      fabric.put_row_lines(group, source, call.heap.lined_result(call.epoch, entry.return_row, tile), segment,
                           std::int64_t{columns} * g.element_bytes / 8, line_tag(call.generation, call.epoch));
    } else {
      fabric.put_row(group, source,
                     call.heap.result_cell(ring_slot, entry.return_row) +
                         static_cast<std::size_t>(first_column) * static_cast<std::size_t>(g.element_bytes),
                     segment, std::int64_t{columns} * g.element_bytes);
    }
  }

  ExpertMath math_;
  const ExpertSource& experts_;
  std::unique_ptr<Accumulators> accumulators_;
  std::vector<char> out_;
  std::vector<char> row_;
};

}  // namespace flashmoe::cpu
