// A GPU's timelines in files and numbers, from records made by hand: parts of processors, and what only waited.
#include "timeline.hpp"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "late_rank.hpp"
#include "trace_summary.hpp"

namespace flashmoe::cli {
namespace {

using testing::HasSubstr;
using testing::Not;

TraceRecord span(TraceRecord record, std::uint64_t begin_us, std::uint64_t end_us) {
  record.begin_ns = begin_us * 1000;
  record.end_ns = end_us * 1000;
  return record;
}
TraceRecord up(std::uint64_t begin_us, std::uint64_t end_us) {
  return span(describe_task({.kind = TaskKind::up, .index = 3, .tile = 1}), begin_us, end_us);
}
TraceRecord work(std::uint64_t begin_us, std::uint64_t end_us) { return span({}, begin_us, end_us); }
TraceRecord no_task(std::uint64_t begin_us, std::uint64_t end_us) {
  return span(describe_wait(SignalKind::task, 0), begin_us, end_us);
}

/// One block of a Hopper launch over 100 us, a dispatcher beside it, and one that found no tokens.
std::vector<RankTrace> one_block() {
  const auto part = [](ProcessorPart which, int warpgroup, std::vector<TraceRecord> records) {
    return ActorTrace{.actor = Actor::processor,
                      .index = 7,
                      .part = which,
                      .warpgroup = warpgroup,
                      .sm = 12,
                      .records = std::move(records)};
  };
  RankTrace trace;
  trace.actors = {part(ProcessorPart::foreman, 0, {no_task(0, 10), work(10, 90)}),
                  part(ProcessorPart::loader, 0, {no_task(0, 10), up(10, 50)}),
                  part(ProcessorPart::consumer, 0, {no_task(0, 20), up(20, 60), work(60, 70)}),
                  part(ProcessorPart::consumer, 1, {no_task(0, 30), up(30, 66), work(66, 80)}),
                  {.actor = Actor::dispatcher, .index = 4, .sm = 12, .records = {work(0, 40)}},
                  {.actor = Actor::dispatcher,
                   .index = 5,
                   .sm = 13,
                   .records = {span(describe_wait(SignalKind::planned, 0), 0, 100)}}};
  return {trace};
}

TEST(Timeline, consumers_of_a_block_count_once_as_its_processor) {
  const TraceSummary summary = summarise(one_block());
  EXPECT_EQ(summary.wall_us, 100);
  EXPECT_DOUBLE_EQ(summary.resident_share, 0.90) << "from the foreman's first record to its last";
  EXPECT_DOUBLE_EQ(summary.busy_share, 0.60) << "20 to 80 us, whichever of the two";
  EXPECT_DOUBLE_EQ(summary.product_share, 0.46) << "20 to 66 us";
  EXPECT_DOUBLE_EQ(summary.overlap_efficiency, 0.5) << "the dispatcher works 40 us, 20 of them beside a consumer";
  EXPECT_DOUBLE_EQ(summary.busy_us.at("consumer.up"), 40 + 36);
  EXPECT_DOUBLE_EQ(summary.busy_us.at("loader.up"), 40);
  EXPECT_DOUBLE_EQ(summary.busy_us.at("foreman"), 80);
  EXPECT_DOUBLE_EQ(summary.wait_us[static_cast<std::size_t>(WaitCause::task)], 20 + 30) << "of the consumers alone";
  EXPECT_DOUBLE_EQ(summary.wait_us[static_cast<std::size_t>(WaitCause::own_rank)], 100);
}

TEST(Timeline, spans_that_did_not_fit_are_told_and_nobody_is_said_to_have_only_waited) {
  std::vector<RankTrace> ranks = one_block();
  ranks[0].actors.back().num_dropped = 7;  // what it did after its wait
  EXPECT_EQ(num_dropped(ranks), 7u);
  std::ostringstream svg;
  write_svg(ranks, "title", svg);
  EXPECT_THAT(svg.str(), testing::AllOf(HasSubstr("title; 7 spans did not fit: rows marked * end early (--records)"),
                                        HasSubstr(">SM 13 dispatcher 5 *<"), HasSubstr(">SM 12 dispatcher 4<"),
                                        Not(HasSubstr("only waited"))));
  std::ostringstream chrome;
  write_chrome(ranks, chrome);
  EXPECT_EQ(nlohmann::json::parse(chrome.str())["otherData"]["dropped_spans"], 7);
}

TEST(Timeline, rows_name_multiprocessor_and_role_and_the_picture_leaves_out_what_only_waited) {
  std::ostringstream chrome;
  write_chrome(one_block(), chrome);
  const nlohmann::json content = nlohmann::json::parse(chrome.str());
  std::vector<std::string> names;
  for (const nlohmann::json& event : content["traceEvents"]) {
    if (event["name"] == "thread_name") names.push_back(event["args"]["name"]);
  }
  EXPECT_THAT(names, testing::ElementsAre("SM 12 foreman 7", "SM 12 loader 7", "SM 12 consumer 7.0",
                                          "SM 12 consumer 7.1", "SM 12 dispatcher 4", "SM 13 dispatcher 5"));
  std::ostringstream svg;
  write_svg(one_block(), "a < b", svg);
  EXPECT_THAT(svg.str(), testing::AllOf(HasSubstr("a &lt; b; actors that only waited, not drawn: 1"),
                                        HasSubstr(">SM 12 consumer 7.1<"), Not(HasSubstr("dispatcher 5"))));
}

TraceRecord task(TaskKind kind, std::uint32_t m_block, std::uint32_t tile, std::uint64_t begin_us,
                 std::uint64_t end_us) {
  return span(describe_task({.kind = kind, .index = m_block, .tile = tile}), begin_us, end_us);
}
TraceRecord waits(SignalKind signal, int peer, std::uint64_t begin_us, std::uint64_t end_us) {
  return span(describe_wait(signal, peer), begin_us, end_us);
}

/// Rank 0 begins at 100 us and computes with two processors; rank 1 begins at 500 us, its rows are there at 600 us.
std::vector<RankTrace> beside_a_late_rank() {
  RankTrace other;
  other.actors = {
      {.actor = Actor::subscriber,
       .records = {work(100, 110), waits(SignalKind::header, 1, 110, 540), work(540, 550),
                   waits(SignalKind::list, 1, 550, 570), work(570, 580), waits(SignalKind::arrival, 1, 580, 600),
                   work(600, 610), waits(SignalKind::arrival, 1, 610, 700), work(700, 701)}},
      {.actor = Actor::processor,
       .index = 0,
       .records = {task(TaskKind::up, 0, 0, 120, 320), task(TaskKind::up, 1, 0, 320, 400),
                   task(TaskKind::down, 1, 0, 400, 450), no_task(450, 620), task(TaskKind::up, 2, 0, 620, 800)}},
      {.actor = Actor::processor,
       .index = 1,
       .records = {task(TaskKind::up, 0, 1, 100, 300), no_task(300, 570), task(TaskKind::down, 0, 0, 570, 650)}}};
  RankTrace late;
  late.actors = {{.actor = Actor::dispatcher, .records = {work(500, 560)}}};
  return {other, late};
}

TEST(Timeline, until_a_late_rank_s_rows_come_the_others_tasks_are_counted) {
  const LateSummary summary = summarise_late(beside_a_late_rank(), {.rank = 1, .us = 400}, {5, 0});
  ASSERT_EQ(summary.others.size(), 1u);
  const Meanwhile& other = summary.others[0];
  EXPECT_EQ(other.rank, 0);
  EXPECT_DOUBLE_EQ(other.late_start_us, 400);
  EXPECT_DOUBLE_EQ(other.tokens_us, 500) << "the first rows, not all";
  EXPECT_DOUBLE_EQ(other.product_share, (200 + 80 + 50 + 200 + 30) / 1000.0) << "of two processors";
  EXPECT_DOUBLE_EQ(other.busy_share, other.product_share);
  EXPECT_EQ(other.up_tasks, 3);
  EXPECT_EQ(other.down_tasks, 2);
  EXPECT_EQ(other.m_blocks, 2);
  EXPECT_EQ(other.m_blocks_left, 3);
  EXPECT_DOUBLE_EQ(other.last_tile_us, 500) << "it was not done yet";
  const nlohmann::json json = to_json(summary);
  EXPECT_EQ(json["rank"], 1);
  EXPECT_EQ(json["others"][0]["m_blocks_left"], 3);
}

TEST(Timeline, a_rank_that_never_waited_for_the_late_one_has_nothing_to_tell) {
  std::vector<RankTrace> traces = beside_a_late_rank();
  traces[0].actors[0].records = {work(100, 110), waits(SignalKind::header, 2, 110, 540)};
  const Meanwhile other = summarise_late(traces, {.rank = 1, .us = 400}, {5, 0}).others.at(0);
  EXPECT_EQ(other.tokens_us, 0);
  EXPECT_EQ(other.busy_share, 0);
  EXPECT_EQ(other.up_tasks + other.down_tasks + other.m_blocks, 0);
}

TEST(Timeline, lists_of_later_waves_are_not_the_first_tokens) {
  std::vector<RankTrace> traces = beside_a_late_rank();
  traces[0].actors[0].records = {waits(SignalKind::header, 1, 100, 540), work(540, 550),
                                 waits(SignalKind::list, 1, 550, 570),   work(570, 580),
                                 waits(SignalKind::list, 1, 580, 900),   waits(SignalKind::arrival, 1, 900, 950)};
  EXPECT_DOUBLE_EQ(summarise_late(traces, {.rank = 1, .us = 400}, {5, 0}).others.at(0).tokens_us, 470);
}

TEST(Timeline, m_blocks_that_need_no_late_rank_follow_from_the_routing) {
  Batch batch;
  batch.problem.num_ranks = 3;
  batch.problem.num_experts = 6;
  batch.problem.top_k = 2;
  batch.first_token = {0, 3, 5, 8};
  batch.routing.topk_ids = {2, 3, 2, 0, 2, -1,  // rank 0
                            2, 2, 3, 3,         // rank 1
                            2, 3, 5, 4, 3, 3};  // rank 2
  constexpr std::int64_t kAll = 100;
  EXPECT_EQ(m_blocks_without(batch, 1, 2, 2, kAll), 3 + 2) << "expert 2 has 5 rows from ranks 0 and 1, expert 3 has 3";
  EXPECT_EQ(m_blocks_without(batch, 1, 0, 2, kAll), 2 + 3) << "3 rows and 5";
  EXPECT_EQ(m_blocks_without(batch, 1, 2, 2, 2), 2 + 2) << "4 rows and 3: two tokens of a rank";
  EXPECT_EQ(m_blocks_without(batch, 2, 2, 2, kAll), 0);
  EXPECT_EQ(m_blocks_without(batch, 0, 2, 128, kAll), 1);
}

}  // namespace
}  // namespace flashmoe::cli
