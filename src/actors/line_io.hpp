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

/// Copies `num_words` words out of consecutive lines, as far as these carry `tag`, and returns how many it copied: all, or
/// those of whole lines. (The GPU version takes lines by batches, and none of a batch of which one is missing.)
/// Memory ordering: acquire on each tag.
inline std::int64_t load_lines(const SoloGroup&, const Line* lines, std::int64_t num_words, std::uint64_t tag,
                               void* words) {
  auto* target = static_cast<unsigned char*>(words);
  std::int64_t done = 0;
  for (; done < num_words; ++lines) {
    if (observe<Scope::system>(&lines->tag) != tag) return done;
    const std::int64_t rest = num_words - done;
    const std::int64_t count = rest < Line::kDataWords ? rest : Line::kDataWords;
    std::memcpy(target, lines->data, static_cast<std::size_t>(count) * sizeof(std::uint64_t));
    target += count * static_cast<std::int64_t>(sizeof(std::uint64_t));
    done += count;
  }
  return done;
}

/// The same when every line carries `tag`; else returns false and leaves `words` undefined.
inline bool try_load_lines(const SoloGroup& group, const Line* lines, std::int64_t num_words, std::uint64_t tag,
                           void* words) {
  return load_lines(group, lines, num_words, tag, words) == num_words;
}

}  // namespace flashmoe
