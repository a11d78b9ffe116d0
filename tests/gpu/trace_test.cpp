// Timelines of the kernels' actors: complete, in order, on one clock, the same results with them, and a full buffer
// that says so.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "actors/rank_trace.hpp"
#include "api/layer_factory.hpp"
#include "cuda/hopper/tile_shape.hpp"
#include "device.hpp"
#include "flashmoe/error.hpp"
#include "io/synthetic.hpp"
#include "io/synthetic_experts.hpp"
#include "io/synthetic_routing.hpp"

namespace flashmoe::test {
namespace {

constexpr std::int64_t kTokens = 300;
constexpr int kRanks = 2;

class Trace : public testing::TestWithParam<EngineKind> {
 protected:
  void SetUp() override {
    FLASHMOE_REQUIRE_GPUS(1);
    try {
      make_layers();
    } catch (const InvalidArgument& error) {
      if (GetParam() == EngineKind::portable) throw;
      GTEST_SKIP() << error.what();
    }
  }

  void make_layers() {
    const Group group = Group::local(kRanks, {.backend = BackendKind::cuda, .engine = GetParam()});
    const auto experts = std::make_shared<GeneratedExperts>(problem_, 1, std::size_t{16} << 20);
    routing_ = generate_routing({}, problem_, 1, {kTokens, kTokens});
    for (int rank = 0; rank < kRanks; ++rank) {
      layers_.push_back(LayerFactory::make(group, rank, problem_, experts));
      x_.push_back(generate_tokens(problem_.dtype, 1, rank * kTokens, kTokens, problem_.hidden));
    }
  }

  void trace_to(std::vector<RankTrace>& traces) {
    for (std::size_t rank = 0; rank < kRanks; ++rank) LayerFactory::trace_to(layers_[rank], &traces[rank]);
  }

  /// First tiles of all tasks of one kind of an m-block.
  static void expect_no_gap(const std::set<std::uint32_t>& tiles) {
    const bool narrow = GetParam() == EngineKind::portable || tiles.contains(1);  // of one tile
    EXPECT_EQ(*tiles.rbegin() / (narrow ? 1 : cuda_backend::hopper::kTilesAtOnce) + 1, tiles.size());
  }

  /// Results of one call of all ranks.
  std::vector<std::vector<std::byte>> call() {
    std::vector<std::vector<std::byte>> y;
    for (const auto& x : x_) y.emplace_back(x.size(), std::byte{0xff});
    std::vector<std::jthread> threads;
    for (std::size_t rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([this, &y, rank] {
        layers_[rank].forward({x_[rank].data(), kTokens}, routing_[rank].view(), {y[rank].data(), kTokens});
      });
    }
    threads.clear();
    return y;
  }

  /// Results of the last of three calls back to back; rank 1 begins it late.
  std::vector<std::vector<std::byte>> call_repeatedly(double hold_last_us) {
    std::vector<std::vector<std::byte>> y;
    for (const auto& x : x_) y.emplace_back(x.size(), std::byte{0xff});
    std::vector<std::unique_ptr<PreparedCalls>> calls;
    for (std::size_t rank = 0; rank < kRanks; ++rank) {
      calls.push_back(LayerFactory::prepare_calls(layers_[rank], {x_[rank].data(), kTokens}, routing_[rank].view(),
                                                  {y[rank].data(), kTokens},
                                                  {.most_calls = 3, .hold_last_us = rank == 1 ? hold_last_us : 0}));
    }
    std::vector<std::jthread> threads;
    for (const auto& prepared : calls) threads.emplace_back([&prepared] { prepared->run(3); });
    threads.clear();
    return y;
  }

  const Problem problem_{
      .num_ranks = kRanks, .hidden = 256, .intermediate = 384, .num_experts = 8, .top_k = 2, .max_tokens = kTokens};
  std::vector<Layer> layers_;
  std::vector<RankRouting> routing_;
  std::vector<std::vector<std::byte>> x_;
};

using TaskName = std::tuple<TaskKind, std::uint32_t, std::uint32_t>;

/// Tasks by what ran them, each counted.
std::map<std::pair<ProcessorPart, int>, std::map<TaskName, int>> tasks_of(const RankTrace& trace) {
  std::map<std::pair<ProcessorPart, int>, std::map<TaskName, int>> tasks;
  for (const ActorTrace& actor : trace.actors) {
    for (const TraceRecord& record : actor.records) {
      if (record.kind != TraceRecord::Kind::task) continue;
      EXPECT_EQ(actor.actor, Actor::processor);
      ++tasks[{actor.part, actor.warpgroup}][{record.task_kind, record.index, record.tile}];
    }
  }
  return tasks;
}

TEST_P(Trace, every_actor_is_there_its_spans_follow_one_another_and_every_task_was_run) {
  std::vector<RankTrace> traces(kRanks);
  trace_to(traces);
  call();
  std::uint64_t latest_begin = 0;
  std::uint64_t earliest_end = ~std::uint64_t{0};
  for (const RankTrace& trace : traces) {
    std::set<std::string> roles;
    std::uint64_t begin = ~std::uint64_t{0};
    std::uint64_t end = 0;
    for (const ActorTrace& actor : trace.actors) {
      roles.emplace(actor.actor == Actor::processor ? to_string(actor.part) : to_string(actor.actor));
      EXPECT_GE(actor.sm, 0);
      EXPECT_EQ(actor.num_dropped, 0u);
      std::uint64_t last_end = 0;
      for (const TraceRecord& record : actor.records) {
        EXPECT_LE(last_end, record.begin_ns);
        EXPECT_LE(record.begin_ns, record.end_ns);
        last_end = record.end_ns;
      }
      begin = std::min(begin, actor.records.front().begin_ns);
      end = std::max(end, last_end);
    }
    std::set<std::string> wanted{"dispatcher", "subscriber", "scheduler", "combiner"};
    if (GetParam() == EngineKind::portable) {
      wanted.insert("processor");
    } else {
      wanted.insert({"foreman", "loader", "consumer"});
    }
    EXPECT_EQ(roles, wanted);
    EXPECT_LT(end - begin, 1'000'000'000u);
    latest_begin = std::max(latest_begin, begin);
    earliest_end = std::min(earliest_end, end);

    // Every m-block has all its tiles, each run once; consumers see what the loader loaded.
    auto tasks = tasks_of(trace);
    const auto& all = tasks[{GetParam() == EngineKind::portable ? ProcessorPart::whole : ProcessorPart::loader, 0}];
    std::map<std::pair<TaskKind, std::uint32_t>, std::set<std::uint32_t>> tiles;
    for (const auto& [task, count] : all) {
      EXPECT_EQ(count, 1);
      tiles[{std::get<0>(task), std::get<1>(task)}].insert(std::get<2>(task));
    }
    EXPECT_GE(tiles.size(), 2u * 4u) << "up and down of at least one m-block for each of 4 experts";
    for (const auto& [block, indices] : tiles) {
      expect_no_gap(indices);
      EXPECT_TRUE(tiles.contains({block.first == TaskKind::up ? TaskKind::down : TaskKind::up, block.second}));
    }
    if (GetParam() == EngineKind::hopper) {
      std::map<TaskName, int> consumed = tasks[{ProcessorPart::consumer, 0}];
      for (const auto& [task, count] : tasks[{ProcessorPart::consumer, 1}]) consumed[task] = 1;
      EXPECT_EQ(consumed.size(), all.size());
    }
  }
  EXPECT_LT(latest_begin, earliest_end) << "the ranks' calls overlap on the common clock";
}

TEST_P(Trace, of_calls_back_to_back_the_last_is_left) {
  const std::vector<std::vector<std::byte>> wanted = call();
  std::vector<RankTrace> repeated(kRanks);
  trace_to(repeated);
  EXPECT_EQ(call_repeatedly(0), wanted);
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    for (const auto& [part, tasks] : tasks_of(repeated[rank])) {
      for (const auto& [task, count] : tasks) EXPECT_EQ(count, 1);
    }
    // How many m-blocks there are, whether both warpgroups have rows of each, and so whether tasks are narrow, depends on when the
    // rows landed.
    std::map<std::uint32_t, std::map<TaskKind, std::set<std::uint32_t>>> blocks;
    for (const auto& [part, own] : tasks_of(repeated[rank])) {
      for (const auto& [task, count] : own) blocks[std::get<1>(task)][std::get<0>(task)].insert(std::get<2>(task));
    }
    EXPECT_GE(blocks.size(), 4u) << "an m-block for each of 4 experts";
    for (const auto& [block, tiles] : blocks) {
      EXPECT_EQ(tiles.size(), 2u) << "up and down tiles of m-block " << block;
      for (const auto& [kind, indices] : tiles) expect_no_gap(indices);
    }
  }
}

TEST_P(Trace, a_rank_that_is_held_back_begins_late_and_the_other_computes_meanwhile) {
  const std::vector<std::vector<std::byte>> wanted = call();
  std::vector<RankTrace> traces(kRanks);
  trace_to(traces);
  EXPECT_EQ(call_repeatedly(50'000), wanted);
  const auto begin_of = [](const RankTrace& trace) {
    std::uint64_t begin_ns = ~std::uint64_t{0};
    for (const ActorTrace& actor : trace.actors) begin_ns = std::min(begin_ns, actor.records.front().begin_ns);
    return begin_ns;
  };
  const std::uint64_t late_ns = begin_of(traces[1]);
  EXPECT_GT(late_ns, begin_of(traces[0]) + 40'000'000);
  int before = 0;
  for (const ActorTrace& actor : traces[0].actors) {
    for (const TraceRecord& record : actor.records) {
      before += record.kind == TraceRecord::Kind::task && record.end_ns < late_ns ? 1 : 0;
    }
  }
  EXPECT_GE(before, 2 * 4) << "up and down of its own tokens' rows for each of 4 experts";
}

TEST_P(Trace, results_are_the_same_with_it_and_a_buffer_that_fills_says_so) {
  const auto wanted = call();
  std::vector<RankTrace> traces(kRanks, RankTrace{.capacity = 2, .actors = {}});
  trace_to(traces);
  EXPECT_EQ(call(), wanted);
  for (const RankTrace& trace : traces) {
    std::uint64_t num_dropped = 0;
    for (const ActorTrace& actor : trace.actors) {
      EXPECT_LE(actor.records.size(), 2u);
      num_dropped += actor.num_dropped;
    }
    EXPECT_GT(num_dropped, 0u);
  }
  for (const Layer& layer : layers_) LayerFactory::trace_to(layer, nullptr);
  traces.assign(kRanks, RankTrace{});
  EXPECT_EQ(call(), wanted);
  for (const RankTrace& trace : traces) EXPECT_TRUE(trace.actors.empty()) << "nobody writes to a trace taken back";
}

INSTANTIATE_TEST_SUITE_P(Engines, Trace, testing::Values(EngineKind::portable, EngineKind::hopper),
                         [](const auto& engine) { return std::string(to_string(engine.param)); });

}  // namespace
}  // namespace flashmoe::test
