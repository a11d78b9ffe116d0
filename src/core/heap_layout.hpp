// Layout of the symmetric heap: one pure function from the geometry to offsets, independent of routing.
// Every region is indexed by the rank that writes it, so no two ranks ever write one cell.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/arena.hpp"
#include "core/divide.hpp"
#include "core/geometry.hpp"
#include "core/line.hpp"
#include "core/route_image.hpp"

namespace flashmoe {

/// Longest num_ranks of region tables below; validate() enforces the same limit.
inline constexpr int kMaxRanks = Limits::num_ranks;

/// One name per region of the heap, in memory order.
enum class HeapRegion : std::uint8_t {
  aborts,         // [num_ranks] u64                                   any rank adds 1 when it gives up
  stall_records,  // [num_ranks] lines                                 why
  headers,        // [num_ranks][2] lines                              what comes this epoch
  consumed,       // [num_ranks][wave_ring] u64, indexed by receiver    waves the receiver has retired
  arrivals,       // [num_ranks][wave_ring][slot_blocks] u64           rows landed
  result_counts,  // [num_ranks][wave_ring][token_blocks] u64          result cells landed, indexed by expert rank
  lists,          // [num_ranks][wave_ring][list_lines] lines          route images, or few ids to make them of
  tokens,         // [num_ranks][wave_ring][wave_tokens][hidden]       a token once per destination rank
  results,        // [wave_ring][wave_tokens][num_result_cells][hidden]
  lined_ids,      // [num_ranks][2][id_lines] lines                    every rank's topk_ids (and weights)
  lined_rows,     // [num_ranks][2][lined_tokens][row_lines] lines
  lined_results,  // [2][lined_tokens][top_k][down_tiles][segment_lines] lines
};
inline constexpr int kNumHeapRegions = 12;

constexpr std::string_view to_string(HeapRegion region) {
  constexpr std::string_view names[kNumHeapRegions] = {"aborts",        "stall_records", "headers",   "consumed",
                                                       "arrivals",      "result_counts", "lists",     "tokens",
                                                       "results",       "lined_ids",     "lined_rows", "lined_results"};
  return names[static_cast<int>(region)];
}

/// Offsets of every region and of every cell inside it, in bytes from the heap's base.
struct HeapLayout {
  Geometry geometry;
  std::size_t region_offset[kNumHeapRegions] = {};
  std::size_t region_bytes[kNumHeapRegions] = {};
  std::size_t total_bytes = 0;

  // Lengths that several regions share.
  std::int64_t list_lines = 0;     ///< of one route image
  std::int64_t id_lines = 0;       ///< of one rank's ids and weights in lined form
  std::int64_t row_lines = 0;      ///< of one token row
  std::int64_t segment_lines = 0;  ///< of one down tile's columns of one result row

  FLASHMOE_HD constexpr std::size_t offset_of(HeapRegion region) const {
    return region_offset[static_cast<int>(region)];
  }

  FLASHMOE_HD constexpr std::size_t abort(int writer) const {
    return offset_of(HeapRegion::aborts) + static_cast<std::size_t>(writer) * sizeof(std::uint64_t);
  }
  FLASHMOE_HD constexpr std::size_t stall_record(int writer) const {
    return offset_of(HeapRegion::stall_records) + static_cast<std::size_t>(writer) * sizeof(Line);
  }
  FLASHMOE_HD constexpr std::size_t header(int source, std::uint64_t epoch) const {
    return offset_of(HeapRegion::headers) + (static_cast<std::size_t>(source) * 2 + epoch % 2) * sizeof(Line);
  }
  FLASHMOE_HD constexpr std::size_t consumed(int receiver, int ring_slot) const {
    return offset_of(HeapRegion::consumed) +
           (static_cast<std::size_t>(receiver) * geometry.wave_ring + ring_slot) * kCounterStride;
  }
  FLASHMOE_HD constexpr std::size_t arrival(int source, int ring_slot, int slot_block) const {
    return offset_of(HeapRegion::arrivals) +
           ((static_cast<std::size_t>(source) * geometry.wave_ring + ring_slot) * geometry.num_slot_blocks() +
            slot_block) * sizeof(std::uint64_t);
  }
  FLASHMOE_HD constexpr std::size_t result_count(int expert_rank, int ring_slot, int token_block) const {
    return offset_of(HeapRegion::result_counts) +
           ((static_cast<std::size_t>(expert_rank) * geometry.wave_ring + ring_slot) * geometry.num_token_blocks() +
            token_block) * sizeof(std::uint64_t);
  }
  FLASHMOE_HD constexpr std::size_t list(int source, int ring_slot) const {
    return offset_of(HeapRegion::lists) +
           (static_cast<std::size_t>(source) * geometry.wave_ring + ring_slot) * list_lines * sizeof(Line);
  }
  FLASHMOE_HD constexpr std::size_t token_row(int source, int ring_slot, std::int64_t slot) const {
    return offset_of(HeapRegion::tokens) +
           ((static_cast<std::size_t>(source) * geometry.wave_ring + ring_slot) * geometry.wave_tokens + slot) *
               geometry.row_bytes();
  }
  FLASHMOE_HD constexpr std::size_t result_cell(int ring_slot, std::int64_t token, int cell) const {
    return offset_of(HeapRegion::results) +
           ((static_cast<std::size_t>(ring_slot) * geometry.wave_tokens + token) * geometry.num_result_cells + cell) *
               geometry.row_bytes();
  }
  /// That of a route, per_route: `return_row` is token * top_k + choice.
  FLASHMOE_HD constexpr std::size_t result_cell(int ring_slot, std::uint32_t return_row) const {
    const int token = divide_small(static_cast<int>(return_row), geometry.top_k);
    return result_cell(ring_slot, token, static_cast<int>(return_row) - token * geometry.top_k);
  }
  FLASHMOE_HD constexpr std::size_t lined_ids(int source, std::uint64_t epoch) const {
    return offset_of(HeapRegion::lined_ids) +
           (static_cast<std::size_t>(source) * 2 + epoch % 2) * id_lines * sizeof(Line);
  }
  FLASHMOE_HD constexpr std::size_t lined_row(int source, std::uint64_t epoch, std::int64_t slot) const {
    return offset_of(HeapRegion::lined_rows) +
           ((static_cast<std::size_t>(source) * 2 + epoch % 2) * geometry.lined_tokens + slot) * row_lines *
               sizeof(Line);
  }
  /// Lines of columns [down_tile * tile.down_columns, ...) of one route's result.
  FLASHMOE_HD constexpr std::size_t lined_result(std::uint64_t epoch, std::int64_t return_row, int down_tile) const {
    return offset_of(HeapRegion::lined_results) +
           (((epoch % 2) * geometry.lined_tokens * geometry.top_k + return_row) * geometry.num_down_tiles() +
            down_tile) * segment_lines * sizeof(Line);
  }

  /// Consumed counters are polled by every dispatcher of the source: one cache line each.
  static constexpr std::size_t kCounterStride = 128;
};

/// The layout for a geometry. Sizes are exact: total_bytes is the end of the last region, and nothing overlaps.
constexpr HeapLayout make_heap_layout(const Geometry& g) {
  HeapLayout layout;
  layout.geometry = g;
  const std::int64_t ranks = g.num_ranks;
  const std::int64_t id_words = ceil_div(std::int64_t{g.lined_tokens} * g.top_k, 2) * (g.list_weights ? 2 : 1);
  layout.list_lines = num_lines(max_image_words(g));
  layout.id_lines = num_lines(id_words);
  layout.row_lines = num_lines(g.row_words());
  layout.segment_lines = num_lines(ceil_div(std::int64_t{g.tile.down_columns} * g.element_bytes, 8));

  constexpr std::int64_t line = sizeof(Line);
  constexpr std::int64_t counter = sizeof(std::uint64_t);
  const std::int64_t cells = std::int64_t{g.wave_ring} * g.wave_tokens;
  const std::int64_t bytes[kNumHeapRegions] = {
      ranks * counter,
      ranks * line,
      ranks * 2 * line,
      ranks * g.wave_ring * static_cast<std::int64_t>(HeapLayout::kCounterStride),
      ranks * g.wave_ring * g.num_slot_blocks() * counter,
      ranks * g.wave_ring * g.num_token_blocks() * counter,
      ranks * g.wave_ring * layout.list_lines * line,
      ranks * cells * g.row_bytes(),
      cells * g.num_result_cells * g.row_bytes(),
      ranks * 2 * layout.id_lines * line,
      ranks * 2 * g.lined_tokens * layout.row_lines * line,
      std::int64_t{2} * g.lined_tokens * g.top_k * g.num_down_tiles() * layout.segment_lines * line,
  };
  Arena arena;
  for (int region = 0; region < kNumHeapRegions; ++region) {
    layout.region_bytes[region] = static_cast<std::size_t>(bytes[region]);
    layout.region_offset[region] = arena.take(layout.region_bytes[region]);
  }
  layout.total_bytes = arena.total_bytes();
  return layout;
}

/// Regions before this offset hold counters and tags: cleared once at creation and never by a call.
/// `lists` and the lined regions are cleared too (their tags); token and result rows need not be.
constexpr std::size_t payload_begin(const HeapLayout& layout) { return layout.offset_of(HeapRegion::tokens); }

}  // namespace flashmoe
