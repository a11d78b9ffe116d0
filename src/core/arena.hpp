// Hands out aligned slices of one block of memory in order: the single source of truth for a memory layout.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/annotate.hpp"

namespace flashmoe {

constexpr std::size_t align_up(std::size_t value, std::size_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

constexpr std::int64_t ceil_div(std::int64_t value, std::int64_t divisor) { return (value + divisor - 1) / divisor; }

/// Offsets and total come from the same calls, so they cannot disagree. 128-byte slices keep lines whole
/// and 16-byte accesses aligned whatever the element type.
class Arena {
 public:
  static constexpr std::size_t kAlignment = 128;

  /// Reserves `bytes` and returns the slice's offset.
  constexpr std::size_t take(std::size_t bytes) {
    const std::size_t offset = total_;
    total_ = align_up(offset + bytes, kAlignment);
    return offset;
  }

  constexpr std::size_t total_bytes() const { return total_; }

 private:
  std::size_t total_ = 0;
};

}  // namespace flashmoe
