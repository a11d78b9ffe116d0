// Timeline records: what becomes one span, and what happens when there is no more room.
#include "actors/trace.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace flashmoe {
namespace {

TraceRecord span(TraceRecord record, std::uint64_t begin_ns, std::uint64_t end_ns) {
  record.begin_ns = begin_ns;
  record.end_ns = end_ns;
  return record;
}

TraceRecord waiting(SignalKind signal, int peer) {
  return describe_step(Step::idle, {.signal = signal, .peer = peer}, nullptr);
}

TEST(TraceBuffer, idle_steps_of_one_cause_are_one_wait_and_another_cause_or_rank_begins_another) {
  std::vector<TraceRecord> records(8);
  TraceBuffer buffer(records.data(), 8);
  buffer.add(span(waiting(SignalKind::arrival, 1), 10, 20));
  buffer.add(span(waiting(SignalKind::arrival, 1), 5000, 5010));
  buffer.add(span(waiting(SignalKind::arrival, 2), 5010, 5020));
  buffer.add(span(waiting(SignalKind::list, 2), 5020, 5030));
  buffer.finish();
  ASSERT_EQ(buffer.num_records(), 3u);
  EXPECT_EQ(records[0].begin_ns, 10u);
  EXPECT_EQ(records[0].end_ns, 5010u);
  EXPECT_EQ(records[1].peer, 2);
  EXPECT_EQ(records[2].signal, SignalKind::list);
}

TEST(TraceBuffer, tasks_stay_apart_and_say_which_they_are) {
  std::vector<TraceRecord> records(8);
  TraceBuffer buffer(records.data(), 8);
  const Task up{.kind = TaskKind::up, .index = 3, .tile = 7};
  const Task reduce{.kind = TaskKind::reduce, .wave_slot = 5, .tile = 1};
  buffer.add(span(describe_step(Step::advanced, {}, &up), 0, 10));
  buffer.add(span(describe_step(Step::advanced, {}, &up), 10, 20));
  buffer.add(span(describe_step(Step::advanced, {}, &reduce), 20, 30));
  buffer.finish();
  ASSERT_EQ(buffer.num_records(), 3u);
  EXPECT_EQ(records[1].kind, TraceRecord::Kind::task);
  EXPECT_EQ(records[1].task_kind, TaskKind::up);
  EXPECT_EQ(records[1].index, 3u);
  EXPECT_EQ(records[1].tile, 7u);
  EXPECT_EQ(records[2].index, 5u);
}

TEST(TraceBuffer, steps_of_work_are_one_span_unless_time_passed_between_them) {
  std::vector<TraceRecord> records(8);
  TraceBuffer buffer(records.data(), 8);
  const TraceRecord work = describe_step(Step::advanced, {}, nullptr);
  buffer.add(span(work, 0, 10));
  buffer.add(span(work, 12, 20));
  buffer.add(span(work, 50000, 50010));
  buffer.finish();
  ASSERT_EQ(buffer.num_records(), 2u);
  EXPECT_EQ(records[0].end_ns, 20u);
}

TEST(TraceBuffer, once_full_it_counts_what_is_lost_and_keeps_the_beginning_as_it_was) {
  std::vector<TraceRecord> records(3);
  TraceBuffer buffer(records.data(), 2);
  buffer.add(span(waiting(SignalKind::task, 0), 0, 10));
  buffer.add(span(waiting(SignalKind::list, 0), 10, 20));
  buffer.add(span(waiting(SignalKind::task, 0), 20, 30));
  buffer.add(span(waiting(SignalKind::list, 0), 30, 40));  // like the last one kept, but not its continuation
  buffer.finish();
  EXPECT_EQ(buffer.num_records(), 2u);
  EXPECT_EQ(buffer.num_dropped(), 2u);
  EXPECT_EQ(records[1].end_ns, 20u);
  EXPECT_EQ(records[2].end_ns, 0u) << "nothing is written past the capacity";
}

}  // namespace
}  // namespace flashmoe
