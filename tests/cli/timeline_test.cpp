// A GPU's timelines in files and numbers, from records made by hand: parts of processors, and what only waited.
#include "timeline.hpp"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <sstream>

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

}  // namespace
}  // namespace flashmoe::cli
