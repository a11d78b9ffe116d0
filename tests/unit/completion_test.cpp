// Completion with a group of threads that do not run in step, as the processor warps of a block.
#include "actors/completion.hpp"

#include <gtest/gtest.h>

#include <barrier>
#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "actors/call.hpp"

namespace flashmoe {
namespace {

/// What two threads share as a group.
struct Meeting {
  std::barrier<> barrier{2};
  char value[64];
};

/// One of them.
struct PairGroup {
  Meeting* meeting;
  int thread;

  int size() const { return 2; }
  int index() const { return thread; }
  bool leader() const { return thread == 0; }
  void sync() const { meeting->barrier.arrive_and_wait(); }
  template <class T>
  T broadcast(T value) const {
    if (leader()) std::memcpy(meeting->value, &value, sizeof(T));
    sync();
    std::memcpy(&value, meeting->value, sizeof(T));
    sync();
    return value;
  }
  Scan scan(std::uint32_t value) const { return {0, value}; }
};

struct NoFabric {
  void signal(int, std::size_t, std::uint64_t) const {}
  template <std::size_t count>
  void signal_all(int, const std::size_t (&)[count], const std::uint64_t (&)[count]) const {}
  void release(bool) const {}
};

TEST(Completion, gives_an_m_block_back_when_no_thread_reads_it_any_more) {
  const Geometry geometry{.num_ranks = 1, .num_local_experts = 1, .hidden = 16, .intermediate = 16, .top_k = 1,
                          .element_bytes = 4, .max_tokens = 8, .wave_tokens = 8, .wave_ring = 1, .lined_tokens = 8,
                          .slot_block = 8, .token_block = 8, .num_result_cells = 1,
                          .tile = {.rows = 4, .up_columns = 16, .down_columns = 16}, .num_m_blocks = 1};
  Call call;
  call.heap.geometry = geometry;
  call.local_layout = make_local_layout(geometry, call.roster);
  call.plan.wire_form = WireForm::lined;
  const auto memory = std::make_unique<char[]>(call.local_layout.total_bytes);
  call.local = memory.get();
  MBlock& block = call.m_block(0);
  block = {.num_rows = 1, .num_segments = 1, .free = 0, .holders = 1};
  block.segments[0].count = 1;

  Meeting meeting;
  const auto finish = [&](int thread, std::chrono::milliseconds delay) {
    const PairGroup group{&meeting, thread};
    Completion<PairGroup, NoFabric> completion(call, NoFabric{});
    completion.begin(group, {.kind = TaskKind::down});
    std::this_thread::sleep_for(delay);
    if (thread == 1) {
      EXPECT_EQ(observe<Scope::device>(&block.free), 0u) << "a thread has not looked at the block";
    }
    while (!completion.idle()) completion.step(group);
  };
  {
    const std::jthread leader([&] { finish(0, {}); });
    const std::jthread other([&] { finish(1, std::chrono::milliseconds(100)); });
  }
  EXPECT_EQ(block.free, 1u);
  EXPECT_EQ(call.counters().retired_blocks, 1u);
}

/// Adds to result counters, by rank and place.
struct SignalLog {
  std::map<std::pair<int, std::size_t>, std::uint64_t>* adds;

  void signal(int, std::size_t, std::uint64_t) const {}
  template <std::size_t count>
  void signal_all(int peer, const std::size_t (&offsets)[count], const std::uint64_t (&amounts)[count]) const {
    for (std::size_t i = 0; i < count; ++i) {
      if (amounts[i] > 0) (*adds)[{peer, offsets[i]}] += amounts[i];
    }
  }
  void release(bool) const {}
};

TEST(Completion, adds_the_same_by_rows_counters_as_by_their_lists) {
  const Geometry g{.num_ranks = 3, .num_local_experts = 1, .hidden = 16, .intermediate = 16, .top_k = 2, .element_bytes = 4,
                   .max_tokens = 40, .wave_tokens = 40, .wave_ring = 2, .slot_block = 8, .token_block = 8, .num_result_cells = 2,
                   .tile = {.rows = 64, .up_columns = 16, .down_columns = 16}, .num_m_blocks = 1};
  Call call;
  call.heap = make_heap_layout(g);
  call.rank = 1;
  call.local_layout = make_local_layout(g, call.roster);
  call.plan.wire_form = WireForm::counted;
  const auto memory = std::make_unique<char[]>(call.local_layout.total_bytes);
  call.local = memory.get();
  MBlock& block = call.m_block(0);
  std::vector<std::uint32_t> counters;
  const std::uint32_t slots[] = {3, 0, 5};  // of ranks 1, 0, 2
  const std::uint32_t rows[] = {21, 2, 9};
  for (std::uint32_t segment = 0; segment < 3; ++segment) {
    block.segments[segment] = {slots[segment], 1, rows[segment], 0};
    const RouteImage image = call.image(static_cast<int>(slots[segment]));
    for (std::uint32_t row = 0; row < rows[segment]; ++row) {
      const std::uint32_t return_row = 3 * row + segment;  // of tokens 0 to 31
      image.set_entry(1 + row, {row, return_row});
      counters.push_back(result_counter(g, slots[segment], return_row));
    }
  }
  std::map<std::pair<int, std::size_t>, std::uint64_t> adds[2];
  for (const bool by_counters : {false, true}) {
    block.num_rows = 32;
    block.num_segments = 3;
    block.down_done = 0;
    Completion<SoloGroup, SignalLog> completion(call, SignalLog{&adds[by_counters]});
    if (by_counters) {
      completion.begin(SoloGroup{}, {.kind = TaskKind::down}, counters.data(), 32);
    } else {
      completion.begin(SoloGroup{}, {.kind = TaskKind::down});
    }
  }
  EXPECT_EQ(adds[0], adds[1]);
  EXPECT_EQ(adds[0].size(), 7u);  // token blocks: 4, 1 and 2 of them
  std::uint64_t all = 0;
  for (const auto& [counter, amount] : adds[1]) all += amount;
  EXPECT_EQ(all, 32u);
}

}  // namespace
}  // namespace flashmoe
