// The memory that a call must write before it reads it, for tests that fill it with NaN between calls, when no actor
// runs. Counters, tags and whatever else goes on from call to call are not of it.
#pragma once

#include <algorithm>
#include <cstddef>

#include "cpu/layer.hpp"

namespace flashmoe::test {

inline constexpr int kPoison = 0xff;  ///< every byte: NaN in all types, a route or expert that does not exist

/// Rows of one heap by bytes(offset, count), its lines by lines(offset, count).
template <class Bytes, class Lines>
void each_payload(const HeapLayout& layout, const Bytes& bytes, const Lines& lines) {
  for (const HeapRegion region : {HeapRegion::tokens, HeapRegion::results}) {
    bytes(layout.offset_of(region), layout.region_bytes[static_cast<int>(region)]);
  }
  for (const HeapRegion region : {HeapRegion::headers, HeapRegion::lists, HeapRegion::lined_ids, HeapRegion::lined_rows,
                                  HeapRegion::lined_results}) {
    lines(layout.offset_of(region), layout.region_bytes[static_cast<int>(region)] / sizeof(Line));
  }
}

/// A rank's scratch by bytes(offset, count).
template <class Bytes>
void each_scratch(const LocalLayout& l, const Bytes& bytes) {
  bytes(l.source_states, l.arrived_base - l.source_states);
  bytes(l.chunk_counts, l.landed - l.chunk_counts);
  bytes(l.expert_counts, l.lined_ready - l.expert_counts);
  bytes(l.lined_cursors, l.total_bytes - l.lined_cursors);
}

inline void poison_bytes(char* begin, std::size_t count) { std::fill_n(begin, count, static_cast<char>(kPoison)); }

/// Every rank's heap.
inline void poison_heap(const cpu::Heap& heap) {
  for (int rank = 0; rank < heap.layout().geometry.num_ranks; ++rank) {
    char* base = heap.bases()[rank];
    each_payload(
        heap.layout(), [&](std::size_t offset, std::size_t count) { poison_bytes(base + offset, count); },
        [&](std::size_t offset, std::size_t count) {
          for (std::size_t line = 0; line < count; ++line) {
            poison_bytes(base + offset + line * sizeof(Line), sizeof(Line::data));
          }
        });
  }
}

inline void poison_scratch(const cpu::RankContext& context) {
  const Call call = context.make_call();
  each_scratch(call.local_layout,
               [&](std::size_t offset, std::size_t count) { poison_bytes(call.local + offset, count); });
}

}  // namespace flashmoe::test
