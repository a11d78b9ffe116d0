// Storing and reading lines. The GPU versions, where eight threads move one line, live with the CUDA fabric.
#pragma once

#include <cstdint>
#include <cstring>

#include "actors/group.hpp"
#include "actors/signal.hpp"
#include "core/line.hpp"

namespace flashmoe {

/// Stores one line: up to 15 words from `words`, zeros behind them, then the tag.
/// Memory ordering: the tag is a release store, so whoever matches it sees the data.
inline void store_line(Line* line, const void* words, std::int64_t num_words, std::uint64_t tag) {
  const std::size_t bytes = static_cast<std::size_t>(num_words) * sizeof(std::uint64_t);
  std::memcpy(line->data, words, bytes);
  std::memset(reinterpret_cast<char*>(line->data) + bytes, 0, sizeof(line->data) - bytes);
  cuda::atomic_ref<std::uint64_t, cuda::thread_scope_system>(line->tag).store(tag, cuda::memory_order_release);
}

/// Copies `num_words` words out of consecutive lines when every line carries `tag`; else returns false
/// and leaves `words` undefined.
/// Memory ordering: acquire on each tag.
inline bool try_load_lines(const SoloGroup&, const Line* lines, std::int64_t num_words, std::uint64_t tag,
                           void* words) {
  auto* target = static_cast<unsigned char*>(words);
  for (std::int64_t remaining = num_words; remaining > 0; remaining -= Line::kDataWords, ++lines) {
    if (observe<Scope::system>(&lines->tag) != tag) return false;
    const std::int64_t count = remaining < Line::kDataWords ? remaining : Line::kDataWords;
    std::memcpy(target, lines->data, static_cast<std::size_t>(count) * sizeof(std::uint64_t));
    target += count * static_cast<std::int64_t>(sizeof(std::uint64_t));
  }
  return true;
}

}  // namespace flashmoe
