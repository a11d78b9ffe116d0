// A fabric whose deliveries come late: puts and signals wait in a network until somebody delivers them, in any order
// that the protocol must stand. For one thread only: the interleaver's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_set>
#include <vector>

#include "actors/group.hpp"
#include "cpu/fabric.hpp"

namespace flashmoe::cpu {

/// Everything under way between the ranks of one heap, a rank's messages to itself included.
///
/// A channel holds what one source sent to one destination. Its puts are delivered in any order, a line alone and a
/// row in two halves; a signal once every put that entered the channel before it has been delivered. Nothing orders
/// signals among themselves, or channels.
class DelayedNetwork {
 public:
  DelayedNetwork(char* const* heap_base, int num_ranks);

  int num_channels() const { return static_cast<int>(channels_.size()); }  ///< source * num_ranks + destination
  /// Messages of a channel that may be delivered now.
  std::size_t num_deliverable(int channel) const;
  /// Delivers one of them, `index` < num_deliverable(channel).
  void deliver(int channel, std::size_t index);
  bool empty() const { return num_pending_ == 0; }

  /// Takes a message. Throws Error when a put to the same cell is still under way: no protocol of ours may do that, as
  /// nothing would order the two.
  void put_bytes(int source, int destination, std::size_t offset, const void* data, std::size_t bytes);
  void put_line(int source, int destination, std::size_t offset, const void* words, std::int64_t num_words,
                std::uint64_t tag);
  void signal(int source, int destination, std::size_t offset, std::uint64_t amount);

 private:
  struct Put {
    std::uint64_t number = 0;  ///< position in the channel
    std::size_t offset = 0;
    bool line = false;
    std::uint64_t tag = 0;
    std::vector<char> data;
  };
  struct Signal {
    std::uint64_t number = 0;
    std::size_t offset = 0;
    std::uint64_t amount = 0;
  };
  struct Channel {
    std::uint64_t next_number = 0;
    std::vector<Put> puts;        ///< any order
    std::vector<Signal> signals;  ///< ascending numbers

    std::size_t num_free_signals() const;
  };

  Channel& channel(int source, int destination) {
    return channels_[static_cast<std::size_t>(source * num_ranks_ + destination)];
  }
  void take(int source, int destination, Put put);
  std::uint64_t cell_key(int destination, std::size_t offset) const {
    return offset * static_cast<std::uint64_t>(num_ranks_) + static_cast<std::uint64_t>(destination);
  }

  char* const* heap_base_;
  int num_ranks_;
  std::vector<Channel> channels_;
  std::unordered_set<std::uint64_t> cells_under_way_;
  std::size_t num_pending_ = 0;
};

/// What one actor of one rank sends through a DelayedNetwork. See Fabric for the contract.
class DelayedFabric {
 public:
  DelayedFabric(DelayedNetwork& network, int rank, Traffic* traffic)
      : network_(&network), rank_(rank), traffic_(traffic) {}

  void put_row(const SoloGroup&, int peer, std::size_t offset, const void* source, std::int64_t bytes) const {
    const std::size_t half = static_cast<std::size_t>(bytes) / 16 * 8;
    const auto* data = static_cast<const char*>(source);
    if (half > 0) network_->put_bytes(rank_, peer, offset, data, half);
    network_->put_bytes(rank_, peer, offset + half, data + half, static_cast<std::size_t>(bytes) - half);
    if (peer != rank_) traffic_->payload_bytes += static_cast<std::uint64_t>(bytes);
  }

  void put_lines(const SoloGroup&, int peer, std::size_t offset, const void* words, std::int64_t num_words,
                 std::uint64_t tag) const {
    const std::uint64_t bytes = put_each_line(peer, offset, words, num_words, tag);
    if (peer != rank_) traffic_->overhead_bytes += bytes;
  }

  void put_row_lines(const SoloGroup&, int peer, std::size_t offset, const void* words, std::int64_t num_words,
                     std::uint64_t tag) const {
    const std::uint64_t bytes = put_each_line(peer, offset, words, num_words, tag);
    if (peer == rank_) return;
    const std::uint64_t payload = static_cast<std::uint64_t>(num_words) * 8;
    traffic_->payload_bytes += payload;
    traffic_->overhead_bytes += bytes - payload;
  }

  void signal(int peer, std::size_t offset, std::uint64_t amount) const {
    network_->signal(rank_, peer, offset, amount);
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
  /// Returns the bytes of the lines.
  std::uint64_t put_each_line(int peer, std::size_t offset, const void* words, std::int64_t num_words,
                              std::uint64_t tag) const {
    const auto* data = static_cast<const char*>(words);
    for (std::int64_t rest = num_words; rest > 0; rest -= Line::kDataWords) {
      network_->put_line(rank_, peer, offset, data, rest < Line::kDataWords ? rest : Line::kDataWords, tag);
      offset += sizeof(Line);
      data += sizeof(Line::data);
    }
    return static_cast<std::uint64_t>(num_lines(num_words)) * sizeof(Line);
  }

  DelayedNetwork* network_;
  int rank_;
  Traffic* traffic_;
};

}  // namespace flashmoe::cpu
