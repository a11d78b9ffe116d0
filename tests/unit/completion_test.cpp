// Completion with a group of threads that do not run in step, as the processor warps of a block.
#include "actors/completion.hpp"

#include <gtest/gtest.h>

#include <barrier>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>

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

}  // namespace
}  // namespace flashmoe
