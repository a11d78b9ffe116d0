// The route list of one (source, destination, wave): which rows each local expert gathers, where each result goes.
// One image of 8-byte words serves the wire (as lines) and the receiver (as plain memory):
//   word 0                      num_slots | num_entries << 32
//   ceil(num_local_experts / 2) counts of routes per local expert, two u32 a word
//   num_entries                 slot | return_row << 32, experts in order, inside an expert by (token, choice)
//   ceil(num_entries / 2)       fp32 routing weights in the same order, only where list_weights is set
// return_row = token_in_wave * top_k + choice. On the source's own list, slot is the token's index in the wave:
// its rows are read where the caller put them.
#pragma once

#include <cstdint>

#include "core/geometry.hpp"
#include "core/line.hpp"

namespace flashmoe {

struct RouteEntry {
  std::uint32_t slot;
  std::uint32_t return_row;
};

struct RouteImage {
  FLASHMOE_HD static constexpr std::int64_t count_words(int num_local_experts) { return (num_local_experts + 1) / 2; }
  FLASHMOE_HD static constexpr std::int64_t entries_word(int num_local_experts) {
    return 1 + count_words(num_local_experts);
  }

  /// Words of an image with `num_entries` routes.
  FLASHMOE_HD static constexpr std::int64_t num_words(int num_local_experts, std::int64_t num_entries, bool weights) {
    return entries_word(num_local_experts) + num_entries + (weights ? (num_entries + 1) / 2 : 0);
  }

  std::uint64_t* words = nullptr;
  int num_local_experts = 0;

  FLASHMOE_HD void set_header(std::uint32_t num_slots, std::uint32_t num_entries) const {
    words[0] = num_slots | (std::uint64_t{num_entries} << 32);
  }
  FLASHMOE_HD std::uint32_t num_slots() const { return static_cast<std::uint32_t>(words[0]); }
  FLASHMOE_HD std::uint32_t num_entries() const { return static_cast<std::uint32_t>(words[0] >> 32); }
  FLASHMOE_HD std::uint32_t* counts() const { return reinterpret_cast<std::uint32_t*>(words + 1); }  // [num_local_experts]
  FLASHMOE_HD std::uint64_t* entries() const { return words + entries_word(num_local_experts); }     // [num_entries]
  FLASHMOE_HD static std::uint64_t word_of(RouteEntry entry) {
    return entry.slot | (std::uint64_t{entry.return_row} << 32);
  }
  FLASHMOE_HD void set_entry(std::int64_t index, RouteEntry entry) const { entries()[index] = word_of(entry); }
  FLASHMOE_HD RouteEntry entry(std::int64_t index) const {
    const std::uint64_t word = entries()[index];
    return {static_cast<std::uint32_t>(word), static_cast<std::uint32_t>(word >> 32)};
  }
  /// Weights follow the entries, whose number must be final first.
  FLASHMOE_HD float* weights(std::uint32_t entry_count) const {
    return reinterpret_cast<float*>(entries() + entry_count);
  }
};

/// Most words any image of this geometry has (every route of a full wave goes to one rank), in whole lines.
FLASHMOE_HD constexpr std::int64_t max_image_words(const Geometry& geometry) {
  return num_lines(RouteImage::num_words(geometry.num_local_experts,
                                         std::int64_t{geometry.slot_tokens()} * geometry.top_k,
                                         geometry.list_weights)) * Line::kDataWords;
}

}  // namespace flashmoe
