// NaN in all memory of the CPU backend that a call must write before it reads it. Counters, tags and whatever else goes
// on from call to call stay. For the time between calls, when no actor runs.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "cpu/layer.hpp"

namespace flashmoe::test {

inline void poison_bytes(char* begin, std::size_t bytes) { std::fill_n(begin, bytes, static_cast<char>(0xff)); }

/// Rows and the data of lines in every rank's heap.
inline void poison_heap(const cpu::Heap& heap) {
  const HeapLayout& layout = heap.layout();
  for (int rank = 0; rank < layout.geometry.num_ranks; ++rank) {
    char* base = heap.bases()[rank];
    for (const HeapRegion region : {HeapRegion::tokens, HeapRegion::results}) {
      poison_bytes(base + layout.offset_of(region), layout.region_bytes[static_cast<int>(region)]);
    }
    for (const HeapRegion region : {HeapRegion::headers, HeapRegion::lists, HeapRegion::lined_ids,
                                    HeapRegion::lined_rows, HeapRegion::lined_results}) {
      const std::size_t bytes = layout.region_bytes[static_cast<int>(region)];
      for (std::size_t line = 0; line < bytes; line += sizeof(Line)) {
        poison_bytes(base + layout.offset_of(region) + line, sizeof(Line::data));
      }
    }
  }
}

/// A rank's scratch.
inline void poison_scratch(const cpu::RankContext& context) {
  const Call call = context.make_call();
  const LocalLayout& l = call.local_layout;
  const auto poison_slice = [&](std::size_t begin, std::size_t end) { poison_bytes(call.local + begin, end - begin); };
  poison_slice(l.source_states, l.arrived_base);
  poison_slice(l.chunk_counts, l.landed);
  poison_slice(l.expert_counts, l.lined_ready);
  poison_slice(l.lined_cursors, l.total_bytes);
}

}  // namespace flashmoe::test
