// The emulator's fabric: every rank's heap lies in this process, a put is a copy and a signal an atomic add.
#pragma once

#include <cstdint>
#include <cstring>

#include "actors/group.hpp"
#include "actors/line_io.hpp"
#include "actors/signal.hpp"

namespace flashmoe::cpu {

/// Bytes one actor sent to other ranks. Rows are the payload; tags, padding, lists, ids, headers and counters are not.
struct Traffic {
  std::uint64_t payload_bytes = 0;
  std::uint64_t overhead_bytes = 0;
};

/// A Fabric moves data between heaps for one actor:
///   put_row        bytes of one row, ordered only by a later signal of the rank
///   put_lines      words as lines that carry `tag`; no order
///   put_row_lines  the same, counted as payload
///   signal         adds to a counter; covers what the rank put to that peer before
/// `offset` is relative to the peer's heap base.
class Fabric {
 public:
  Fabric(char* const* heap_base, int rank, Traffic* traffic) : heap_base_(heap_base), rank_(rank), traffic_(traffic) {}

  void put_row(const SoloGroup&, int peer, std::size_t offset, const void* source, std::int64_t bytes) const {
    std::memcpy(heap_base_[peer] + offset, source, static_cast<std::size_t>(bytes));
    if (peer != rank_) traffic_->payload_bytes += static_cast<std::uint64_t>(bytes);
  }

  void put_lines(const SoloGroup&, int peer, std::size_t offset, const void* words, std::int64_t num_words,
                 std::uint64_t tag) const {
    store_lines(peer, offset, words, num_words, tag);
    if (peer != rank_) traffic_->overhead_bytes += static_cast<std::uint64_t>(num_lines(num_words)) * sizeof(Line);
  }

  void put_row_lines(const SoloGroup&, int peer, std::size_t offset, const void* words, std::int64_t num_words,
                     std::uint64_t tag) const {
    store_lines(peer, offset, words, num_words, tag);
    if (peer == rank_) return;
    const std::uint64_t payload = static_cast<std::uint64_t>(num_words) * 8;
    traffic_->payload_bytes += payload;
    traffic_->overhead_bytes += static_cast<std::uint64_t>(num_lines(num_words)) * sizeof(Line) - payload;
  }

  void signal(int peer, std::size_t offset, std::uint64_t amount) const {
    add<Scope::system>(reinterpret_cast<std::uint64_t*>(heap_base_[peer] + offset), amount);
    if (peer != rank_) traffic_->overhead_bytes += sizeof(std::uint64_t);
  }

  /// Before signal_all(): here each of its signals releases by itself.
  void release(bool /*to_others*/) const {}

  /// Amounts of 0 are passed over.
  template <std::size_t count>
  void signal_all(int peer, const std::size_t (&offsets)[count], const std::uint64_t (&amounts)[count]) const {
    for (std::size_t i = 0; i < count; ++i) {
      if (amounts[i] > 0) signal(peer, offsets[i], amounts[i]);
    }
  }

 private:
  void store_lines(int peer, std::size_t offset, const void* words, std::int64_t num_words, std::uint64_t tag) const {
    auto* line = reinterpret_cast<Line*>(heap_base_[peer] + offset);
    const auto* source = static_cast<const char*>(words);
    for (std::int64_t rest = num_words; rest > 0; rest -= Line::kDataWords, ++line, source += sizeof(Line::data)) {
      store_line(line, source, rest < Line::kDataWords ? rest : Line::kDataWords, tag);
    }
  }

  char* const* heap_base_;
  int rank_;
  Traffic* traffic_;
};

}  // namespace flashmoe::cpu
