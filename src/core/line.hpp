// A line: 128 bytes that carry their own arrival flag, 15 words of data and a tag.
// On the GPU one warp instruction stores a whole line, so data and tag become visible together; on the CPU the
// tag is a release store after the data.
#pragma once

#include <cstdint>

#include "core/arena.hpp"

namespace flashmoe {

struct alignas(128) Line {
  static constexpr int kDataWords = 15;
  std::uint64_t data[kDataWords];
  std::uint64_t tag;
};
static_assert(sizeof(Line) == 128);

/// Lines that hold `num_words` 8-byte words.
FLASHMOE_HD constexpr std::int64_t num_lines(std::int64_t num_words) {
  return (num_words + Line::kDataWords - 1) / Line::kDataWords;
}

/// Where the words of tiles that follow each other are, when every tile begins a line: the last may have fewer words.
struct TileLines {
  int tile_words = 0;
  int num_words = 0;  ///< of all tiles

  FLASHMOE_HD constexpr int count() const {
    return num_words / tile_words * lines_of_tile() + static_cast<int>(num_lines(num_words % tile_words));
  }
  FLASHMOE_HD constexpr int first_word(int line) const {
    return line / lines_of_tile() * tile_words + line % lines_of_tile() * Line::kDataWords;
  }
  /// One past the last word of the line.
  FLASHMOE_HD constexpr int end_word(int line) const {
    const int of_line = first_word(line) + Line::kDataWords;
    const int of_tile = (line / lines_of_tile() + 1) * tile_words;
    const int end = of_line < of_tile ? of_line : of_tile;
    return end < num_words ? end : num_words;
  }

 private:
  FLASHMOE_HD constexpr int lines_of_tile() const { return static_cast<int>(num_lines(tile_words)); }
};

/// Tag of a line: the heap's generation above a number that never repeats in one region (the epoch, or a source's
/// wave sequence). `sequence` counts from 0; a cleared line (tag 0) never matches because generations start at 1.
FLASHMOE_HD constexpr std::uint64_t line_tag(std::uint16_t generation, std::uint64_t sequence) {
  return (std::uint64_t{generation} << 48) | ((sequence + 1) & 0xffffffffffffull);
}

}  // namespace flashmoe
