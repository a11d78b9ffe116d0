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

/// Tag of a line: the heap's generation above a number that never repeats in one region (the epoch, or a source's
/// wave sequence). `sequence` counts from 0; a cleared line (tag 0) never matches because generations start at 1.
FLASHMOE_HD constexpr std::uint64_t line_tag(std::uint16_t generation, std::uint64_t sequence) {
  return (std::uint64_t{generation} << 48) | ((sequence + 1) & 0xffffffffffffull);
}

/// Elements of two bytes that are stored in one instruction with the tag of what stores them, so that whoever waits for them alone
/// needs neither a fence nor a counter. Half of it is data: for few rows, inside one GPU.
struct alignas(16) TaggedPacket {
  static constexpr int kElements = 4;
  std::uint64_t data;
  std::uint64_t tag;  ///< line_tag()
};

}  // namespace flashmoe
