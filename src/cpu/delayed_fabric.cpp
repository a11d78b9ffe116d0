#include "cpu/delayed_fabric.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "flashmoe/error.hpp"

namespace flashmoe::cpu {

DelayedNetwork::DelayedNetwork(char* const* heap_base, int num_ranks)
    : heap_base_(heap_base),
      num_ranks_(num_ranks),
      channels_(static_cast<std::size_t>(num_ranks) * static_cast<std::size_t>(num_ranks)) {}

std::size_t DelayedNetwork::Channel::num_free_signals() const {
  if (signals.empty()) return 0;
  std::uint64_t first_put = next_number;
  for (const Put& put : puts) first_put = std::min(first_put, put.number);
  const auto blocked = std::find_if(signals.begin(), signals.end(),
                                    [first_put](const Signal& signal) { return signal.number > first_put; });
  return static_cast<std::size_t>(blocked - signals.begin());
}

std::size_t DelayedNetwork::num_deliverable(int channel) const {
  const Channel& it = channels_[static_cast<std::size_t>(channel)];
  return it.puts.size() + it.num_free_signals();
}

void DelayedNetwork::deliver(int channel, std::size_t index) {
  Channel& it = channels_[static_cast<std::size_t>(channel)];
  const int destination = channel % num_ranks_;
  --num_pending_;
  if (index >= it.puts.size()) {
    const auto signal = it.signals.begin() + static_cast<std::ptrdiff_t>(index - it.puts.size());
    add<Scope::system>(reinterpret_cast<std::uint64_t*>(heap_base_[destination] + signal->offset), signal->amount);
    it.signals.erase(signal);
    return;
  }
  std::swap(it.puts[index], it.puts.back());
  const Put put = std::move(it.puts.back());
  it.puts.pop_back();
  cells_under_way_.erase(cell_key(destination, put.offset));
  char* cell = heap_base_[destination] + put.offset;
  if (put.line) {
    store_line(reinterpret_cast<Line*>(cell), put.data.data(), static_cast<std::int64_t>(put.data.size() / 8), put.tag);
  } else {
    std::memcpy(cell, put.data.data(), put.data.size());
  }
}

void DelayedNetwork::take(int source, int destination, Put put) {
  if (!cells_under_way_.insert(cell_key(destination, put.offset)).second) {
    throw Error(fmt::format("rank {} puts to offset {} of rank {} while another put to it is under way", source,
                            put.offset, destination));
  }
  Channel& to = channel(source, destination);
  put.number = to.next_number++;
  to.puts.push_back(std::move(put));
  ++num_pending_;
}

void DelayedNetwork::put_bytes(int source, int destination, std::size_t offset, const void* data, std::size_t bytes) {
  const char* begin = static_cast<const char*>(data);
  take(source, destination, {.number = 0, .offset = offset, .line = false, .tag = 0, .data = {begin, begin + bytes}});
}

void DelayedNetwork::put_line(int source, int destination, std::size_t offset, const void* words,
                              std::int64_t num_words, std::uint64_t tag) {
  const char* begin = static_cast<const char*>(words);
  take(source, destination, {.number = 0, .offset = offset, .line = true, .tag = tag, .data = {begin, begin + 8 * num_words}});
}

void DelayedNetwork::signal(int source, int destination, std::size_t offset, std::uint64_t amount) {
  Channel& to = channel(source, destination);
  to.signals.push_back({to.next_number++, offset, amount});
  ++num_pending_;
}

}  // namespace flashmoe::cpu
