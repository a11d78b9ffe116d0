// Timelines of the CPU backend's actors through a layer: complete, in order, and only where they are asked for.
#include "actors/rank_trace.hpp"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "api/layer_factory.hpp"
#include "flashmoe/error.hpp"
#include "io/synthetic.hpp"
#include "io/synthetic_experts.hpp"
#include "io/synthetic_routing.hpp"

namespace flashmoe {
namespace {

constexpr std::int64_t kTokens = 64;

/// Two ranks whose layers can be called together.
class RankTraceTest : public testing::Test {
 protected:
  /// One call on all ranks.
  void call() {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < problem_.num_ranks; ++rank) {
      threads.emplace_back([this, rank] {
        const auto index = static_cast<std::size_t>(rank);
        layers_[index].forward({x_[index].data(), kTokens}, routing_[index].view(), {y_[index].data(), kTokens});
      });
    }
  }

  void SetUp() override {
    const auto experts = std::make_shared<GeneratedExperts>(problem_, 1, std::size_t{1} << 20);
    routing_ = generate_routing({}, problem_, 1, {kTokens, kTokens});
    for (int rank = 0; rank < problem_.num_ranks; ++rank) {
      layers_.push_back(LayerFactory::make(group_, rank, problem_, experts));
      x_.push_back(generate_tokens(problem_.dtype, 1, rank * kTokens, kTokens, problem_.hidden));
      y_.emplace_back(x_.back().size());
    }
  }

  const Problem problem_{
      .num_ranks = 2, .hidden = 64, .intermediate = 80, .num_experts = 4, .top_k = 2, .max_tokens = kTokens};
  const Group group_ = Group::local(2, {.num_dispatchers = 2, .num_processors = 2, .num_threads = 0});
  std::vector<Layer> layers_;
  std::vector<RankRouting> routing_;
  std::vector<std::vector<std::byte>> x_, y_;
};

TEST_F(RankTraceTest, every_actor_is_there_its_spans_follow_one_another_and_each_tile_is_run_once) {
  std::vector<RankTrace> traces(2);
  for (std::size_t rank = 0; rank < 2; ++rank) LayerFactory::trace_to(layers_[rank], &traces[rank]);
  call();
  for (const RankTrace& trace : traces) {
    ASSERT_EQ(trace.actors.size(), 2u + 2u + 1u + 1u + 2u);
    std::map<std::pair<Actor, int>, int> names;
    std::map<TaskKind, int> tasks;
    for (const ActorTrace& actor : trace.actors) {
      ++names[{actor.actor, actor.index}];
      EXPECT_EQ(actor.num_dropped, 0u);
      ASSERT_FALSE(actor.records.empty());
      std::uint64_t end_ns = 0;
      for (const TraceRecord& record : actor.records) {
        EXPECT_GE(record.begin_ns, end_ns);
        EXPECT_GE(record.end_ns, record.begin_ns);
        end_ns = record.end_ns;
        if (record.kind == TraceRecord::Kind::task) {
          EXPECT_EQ(actor.actor, Actor::processor);
          ++tasks[record.task_kind];
        }
      }
    }
    EXPECT_EQ(names.size(), trace.actors.size()) << "no two actors have one name";
    // An m-block has ceil(80 / 64) up tiles and one down tile.
    EXPECT_GT(tasks[TaskKind::down], 0);
    EXPECT_EQ(tasks[TaskKind::up], 2 * tasks[TaskKind::down]);
  }
}

TEST_F(RankTraceTest, a_call_begins_its_trace_anew_and_a_call_without_leaves_it_alone) {
  RankTrace trace;
  LayerFactory::trace_to(layers_[0], &trace);
  call();
  const std::uint64_t first_ns = trace.actors.front().records.front().begin_ns;
  call();
  const std::uint64_t second_ns = trace.actors.front().records.front().begin_ns;
  EXPECT_GT(second_ns, first_ns);
  LayerFactory::trace_to(layers_[0], nullptr);
  call();
  EXPECT_EQ(trace.actors.front().records.front().begin_ns, second_ns);
}

TEST_F(RankTraceTest, a_trace_without_room_changes_no_result) {
  call();
  const std::vector<std::vector<std::byte>> wanted = y_;
  RankTrace trace{.capacity = 1, .actors = {}};
  LayerFactory::trace_to(layers_[1], &trace);
  for (auto& y : y_) std::fill(y.begin(), y.end(), std::byte{0xff});
  call();
  EXPECT_EQ(y_, wanted);
  std::uint64_t num_dropped = 0;
  for (const ActorTrace& actor : trace.actors) {
    EXPECT_EQ(actor.records.size(), 1u);
    num_dropped += actor.num_dropped;
  }
  EXPECT_GT(num_dropped, 0u);
}

TEST_F(RankTraceTest, repeated_calls_are_timed_and_leave_their_results) {
  call();
  const std::vector<std::vector<std::byte>> wanted = y_;
  for (auto& y : y_) std::fill(y.begin(), y.end(), std::byte{0xff});
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([this, rank] {
      const auto index = static_cast<std::size_t>(rank);
      const auto calls =
          LayerFactory::prepare_calls(layers_[index], {x_[index].data(), kTokens}, routing_[index].view(),
                                      {y_[index].data(), kTokens}, {.replay = Replay::eager, .most_calls = 3});
      const TimedCalls timed = calls->run(3);
      EXPECT_EQ(timed.us.size(), 3u);
      for (const double us : timed.us) EXPECT_GT(us, 0.0);
      EXPECT_EQ(timed.stats.epoch, 3u) << "of the last call";
      EXPECT_EQ(timed.device, -1);
    });
  }
  threads.clear();
  EXPECT_EQ(y_, wanted);
  EXPECT_THROW(LayerFactory::prepare_calls(layers_[0], {x_[0].data(), kTokens}, routing_[0].view(),
                                           {y_[0].data(), kTokens}, {.replay = Replay::graph, .most_calls = 1}),
               InvalidArgument);
}

}  // namespace
}  // namespace flashmoe
