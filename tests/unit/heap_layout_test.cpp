// The heap's layout: exact, disjoint, and no cell that two ranks write.
#include "core/heap_layout.hpp"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <map>
#include <vector>

#include "actors/route_plan.hpp"

namespace flashmoe {
namespace {

__extension__ using Wide = __int128;

Geometry draw_geometry() {
  const auto between = [](int low, int high) { return *rc::gen::inRange(low, high + 1); };
  Geometry g;
  g.num_ranks = between(1, 5);
  g.num_local_experts = between(1, 4);
  g.hidden = 8 * between(1, 6);
  g.intermediate = 8;
  g.top_k = between(1, 4);
  g.element_bytes = *rc::gen::element(2, 4, 8);
  g.wave_tokens = between(1, 9);
  g.max_tokens = g.wave_tokens * between(1, 3);
  g.wave_ring = between(1, 4);
  g.lined_tokens = between(0, 7);
  g.slot_block = between(1, 4);
  g.token_block = between(1, 4);
  g.pre_reduced = between(0, 1) == 1;
  g.num_result_cells = g.pre_reduced ? std::max(g.top_k, g.num_ranks) : g.top_k;
  g.list_weights = g.pre_reduced || between(0, 1) == 1;
  g.tile = {.rows = 4, .up_columns = 8, .down_columns = 8 * between(1, 4)};
  g.num_m_blocks = 2;
  return g;
}

RC_GTEST_PROP(HeapLayout, regions_follow_each_other_without_overlap_and_end_at_the_total, ()) {
  const HeapLayout layout = make_heap_layout(draw_geometry());
  std::size_t end = 0;
  for (int region = 0; region < kNumHeapRegions; ++region) {
    RC_ASSERT(layout.region_offset[region] % Arena::kAlignment == 0u);
    RC_ASSERT(layout.region_offset[region] == align_up(end, Arena::kAlignment));
    end = layout.region_offset[region] + layout.region_bytes[region];
  }
  RC_ASSERT(layout.total_bytes == align_up(end, Arena::kAlignment));
}

/// Bytes of one heap and who may write them.
class Owners {
 public:
  explicit Owners(const HeapLayout& layout) : layout_(layout), owners_(layout.total_bytes, kNobody) {}

  void claim(HeapRegion region, int writer, std::size_t offset, std::size_t bytes) {
    const int index = static_cast<int>(region);
    RC_ASSERT(offset >= layout_.region_offset[index]);
    RC_ASSERT(offset + bytes <= layout_.region_offset[index] + layout_.region_bytes[index]);
    for (std::size_t byte = offset; byte < offset + bytes; ++byte) {
      RC_ASSERT(owners_[byte] == kNobody);
      owners_[byte] = static_cast<std::int8_t>(writer);
    }
  }
  /// Every byte of the region is some cell's.
  bool is_full(HeapRegion region) const {
    const int index = static_cast<int>(region);
    const auto begin = owners_.begin() + static_cast<std::ptrdiff_t>(layout_.region_offset[index]);
    return std::count(begin, begin + static_cast<std::ptrdiff_t>(layout_.region_bytes[index]), kNobody) == 0;
  }

 private:
  static constexpr std::int8_t kNobody = -1;
  const HeapLayout& layout_;
  std::vector<std::int8_t> owners_;
};

RC_GTEST_PROP(HeapLayout, no_two_ranks_write_one_byte_and_none_is_without_a_writer, ()) {
  const Geometry g = draw_geometry();
  const HeapLayout layout = make_heap_layout(g);
  Owners owners(layout);
  const auto row = static_cast<std::size_t>(g.row_bytes());
  const auto lines = [](std::int64_t count) { return static_cast<std::size_t>(count) * sizeof(Line); };
  for (int writer = 0; writer < g.num_ranks; ++writer) {
    owners.claim(HeapRegion::aborts, writer, layout.abort(writer), 8);
    owners.claim(HeapRegion::stall_records, writer, layout.stall_record(writer), sizeof(Line));
    for (std::uint64_t epoch = 6; epoch < 8; ++epoch) {
      owners.claim(HeapRegion::headers, writer, layout.header(writer, epoch), sizeof(Line));
      owners.claim(HeapRegion::lined_ids, writer, layout.lined_ids(writer, epoch), lines(layout.id_lines));
      for (int slot = 0; slot < g.lined_tokens; ++slot) {
        owners.claim(HeapRegion::lined_rows, writer, layout.lined_row(writer, epoch, slot), lines(layout.row_lines));
      }
    }
    for (int ring_slot = 0; ring_slot < g.wave_ring; ++ring_slot) {
      owners.claim(HeapRegion::consumed, writer, layout.consumed(writer, ring_slot), HeapLayout::kCounterStride);
      owners.claim(HeapRegion::lists, writer, layout.list(writer, ring_slot), lines(layout.list_lines));
      for (int block = 0; block < g.num_slot_blocks(); ++block) {
        owners.claim(HeapRegion::arrivals, writer, layout.arrival(writer, ring_slot, block), 8);
      }
      for (int block = 0; block < g.num_token_blocks(); ++block) {
        owners.claim(HeapRegion::result_counts, writer, layout.result_count(writer, ring_slot, block), 8);
      }
      for (int slot = 0; slot < g.wave_tokens; ++slot) {
        owners.claim(HeapRegion::tokens, writer, layout.token_row(writer, ring_slot, slot), row);
      }
    }
  }
  // A result cell is the writer's whose expert the route names (per_route), or whose number it has (pre_reduced): one
  // rank either way. Which one a route names does not move the cell.
  for (int ring_slot = 0; ring_slot < g.wave_ring; ++ring_slot) {
    for (int token = 0; token < g.wave_tokens; ++token) {
      for (int cell = 0; cell < g.num_result_cells; ++cell) {
        owners.claim(HeapRegion::results, 0, layout.result_cell(ring_slot, token, cell), row);
      }
    }
  }
  for (std::uint64_t epoch = 0; epoch < 2; ++epoch) {
    for (std::int64_t return_row = 0; return_row < std::int64_t{g.lined_tokens} * g.top_k; ++return_row) {
      for (int tile = 0; tile < g.num_down_tiles(); ++tile) {
        owners.claim(HeapRegion::lined_results, 0, layout.lined_result(epoch, return_row, tile), lines(layout.segment_lines));
      }
    }
  }
  for (int region = 0; region < kNumHeapRegions; ++region) RC_ASSERT(owners.is_full(static_cast<HeapRegion>(region)));
}

/// What ranks write into one token owner's result cells for a drawn routing.
RC_GTEST_PROP(HeapLayout, results_of_any_routing_have_one_writer_a_cell, ()) {
  const Geometry g = draw_geometry();
  const HeapLayout layout = make_heap_layout(g);
  const auto ids = *rc::gen::container<std::vector<int>>(static_cast<std::size_t>(g.wave_tokens * g.top_k),
                                                         rc::gen::inRange(-1, g.num_experts()));
  std::map<std::size_t, int> writer_of;
  for (int token = 0; token < g.wave_tokens; ++token) {
    for (int choice = 0; choice < g.top_k; ++choice) {
      const int writer = destination_of(g, ids[static_cast<std::size_t>(token * g.top_k + choice)]);
      if (writer < 0) continue;
      const std::size_t cell = layout.result_cell(0, token, g.pre_reduced ? writer : choice);
      RC_ASSERT(writer_of.emplace(cell, writer).first->second == writer);
    }
  }
}

RC_GTEST_PROP(HeapLayout, images_of_full_waves_fit_their_lines, ()) {
  const Geometry g = draw_geometry();
  const HeapLayout layout = make_heap_layout(g);
  const std::int64_t words =
      RouteImage::num_words(g.num_local_experts, std::int64_t{g.wave_tokens} * g.top_k, g.list_weights);
  RC_ASSERT(words <= layout.list_lines * Line::kDataWords);
  RC_ASSERT(g.row_words() <= layout.row_lines * Line::kDataWords);
}

// Sizes of the reports I321, I324, I325 and I326 (docs/cases.md) and the largest that validate() accepts: offsets pass
// 2^32 and must still be what the arithmetic says.
TEST(HeapLayout, I321_I324_I325_I326_offsets_of_large_layouts_are_computed_in_64_bits) {
  Geometry g;
  g.num_ranks = Limits::num_ranks;
  g.num_local_experts = 64;
  g.hidden = Limits::hidden;
  g.intermediate = 17408;
  g.top_k = Limits::top_k;
  g.element_bytes = 8;
  g.max_tokens = Limits::max_tokens;
  g.wave_tokens = static_cast<int>(Limits::wave_tokens);
  g.wave_ring = Limits::wave_ring;
  g.lined_tokens = 1024;
  g.slot_block = g.token_block = 64;
  g.num_result_cells = 64;
  g.list_weights = g.pre_reduced = true;
  g.tile = {.rows = 128, .up_columns = 128, .down_columns = 256};
  g.num_m_blocks = 64;
  const HeapLayout layout = make_heap_layout(g);
  const Wide row = Wide{g.hidden} * g.element_bytes;
  const auto in_region = [&](HeapRegion region, std::size_t offset) { return Wide(offset) - Wide(layout.offset_of(region)); };
  EXPECT_TRUE(in_region(HeapRegion::tokens, layout.token_row(63, 3, 65534)) == ((Wide{63} * 4 + 3) * 65535 + 65534) * row);
  EXPECT_TRUE(in_region(HeapRegion::results, layout.result_cell(3, 65534, 63)) == ((Wide{3} * 65535 + 65534) * 64 + 63) * row);
  EXPECT_TRUE(in_region(HeapRegion::lined_rows, layout.lined_row(63, 1, 1023)) ==
              ((Wide{63} * 2 + 1) * 1024 + 1023) * layout.row_lines * 128);
  EXPECT_TRUE(in_region(HeapRegion::lined_results, layout.lined_result(1, 1024 * 32 - 1, g.num_down_tiles() - 1)) ==
              ((Wide{1024} * 32 + 1024 * 32 - 1) * g.num_down_tiles() + g.num_down_tiles() - 1) * layout.segment_lines * 128);
  EXPECT_TRUE(in_region(HeapRegion::lists, layout.list(63, 3)) == (Wide{63} * 4 + 3) * layout.list_lines * 128);
  Wide total = 0;
  for (int region = 0; region < kNumHeapRegions; ++region) total += (Wide(layout.region_bytes[region]) + 127) / 128 * 128;
  EXPECT_TRUE(total == Wide(layout.total_bytes));
  EXPECT_GT(layout.total_bytes, std::size_t{1} << 40);
}

static_assert(make_heap_layout({.num_ranks = 2, .num_local_experts = 1, .hidden = 8, .intermediate = 8, .top_k = 1,
                                .element_bytes = 2, .max_tokens = 4, .wave_tokens = 4, .wave_ring = 1, .slot_block = 4,
                                .token_block = 4, .num_result_cells = 1, .tile = {4, 8, 8}, .num_m_blocks = 1})
                      .region_bytes[static_cast<int>(HeapRegion::tokens)] == 2 * 4 * 16,
              "a layout is a constant expression");

}  // namespace
}  // namespace flashmoe
