// Dispatchers alone, which plan, push and announce the waves of rank 0 of two: by themselves, with groups of several threads, and
// with others that plan chunks of the first wave for them.
#include "actors/dispatcher.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <tuple>
#include <vector>

#include "actors/call.hpp"
#include "actors/chunk_planner.hpp"
#include "core/counter_rng.hpp"
#include "support/lanes.hpp"

namespace flashmoe {
namespace {

constexpr int kDispatchers = 20;
constexpr int kWaveTokens = kDispatchers * kPlanningTokens;
constexpr std::int64_t kRowBytes = 64;

/// A row as the fabric is asked to put it: rank, place in its heap, and what it is.
using Row = std::tuple<int, std::size_t, const void*>;

/// Keeps what is put as rows, and drops everything else.
struct NotingFabric {
  std::vector<Row>* rows;
  template <class Group>
  void put_row(const Group&, int peer, std::size_t offset, const void* source, std::int64_t bytes) const {
    EXPECT_EQ(bytes, kRowBytes);
    rows->emplace_back(peer, offset, source);
  }
  template <class Group>
  void put_lines(const Group&, int, std::size_t, const void*, std::int64_t, std::uint64_t) const {}
  template <class Group>
  void put_row_lines(const Group&, int, std::size_t, const void*, std::int64_t, std::uint64_t) const {}
  void signal(int, std::size_t, std::uint64_t) const {}
};

/// What receivers would read of a call.
struct Sent {
  std::vector<std::vector<std::uint64_t>> images;  ///< of each wave and rank
  std::vector<Row> rows;                           ///< sorted
  bool operator==(const Sent&) const = default;
};

/// Rank 0 of two with random routes, some of them masked.
class Rank {
 public:
  explicit Rank(std::int64_t num_tokens) {
    Geometry g{.num_ranks = 2, .num_local_experts = 3, .hidden = kRowBytes / 4, .intermediate = 32, .top_k = 3, .element_bytes = 4,
               .max_tokens = 2 * kWaveTokens, .wave_tokens = kWaveTokens, .wave_ring = 2, .slot_block = 16, .token_block = 16,
               .num_result_cells = 3, .tile = {.rows = 4, .up_columns = 16, .down_columns = 16}, .num_m_blocks = 4};
    g.list_weights = true;
    call.heap = make_heap_layout(g);
    call.roster.num_dispatchers = kDispatchers;
    call.local_layout = make_local_layout(g, call.roster);
    call.plan.wire_form = WireForm::counted;
    call.plan.list_weights = true;
    call.num_tokens = num_tokens;
    heap_.resize(call.heap.total_bytes / sizeof(Line) + 1);
    local_.resize(call.local_layout.total_bytes / sizeof(Line) + 1);
    call.heap_base[0] = reinterpret_cast<char*>(heap_.data());
    call.local = reinterpret_cast<char*>(local_.data());
    const CounterRng rng(11, 0);
    for (std::int64_t route = 0; route < num_tokens * g.top_k; ++route) {
      const double drawn = rng.uniform(static_cast<std::uint64_t>(route));
      ids_.push_back(static_cast<std::int32_t>(drawn * (g.num_experts() + 1)) - 1);
      weights_.push_back(static_cast<float>(drawn));
    }
    call.x = x_;
    call.topk_ids = ids_.data();
    call.topk_weights = weights_.data();
  }

  ChunkPlanner<SoloGroup> planner(int chunk) const { return {call, 0, 0, cut(), chunk}; }
  WaveCut cut() const { return cut_wave(call.wave_size(0), call.num_planners()); }
  std::uint64_t num_planned() const { return call.counters().planned[0]; }
  std::uint64_t num_placed() const { return call.counters().placed[0]; }

  Sent sent(std::vector<Row> rows) const {
    Sent sent{{}, std::move(rows)};
    for (int wave = 0; wave < call.own_waves(); ++wave) {
      for (int destination = 0; destination < 2; ++destination) {
        const RouteImage image = call.own_image(destination, wave);
        sent.images.emplace_back(image.words, image.words + RouteImage::num_words(image.num_local_experts, image.num_entries(), true));
      }
    }
    std::sort(sent.rows.begin(), sent.rows.end());
    return sent;
  }

  Call call;
  std::vector<std::int32_t> ids_;

 private:
  static constexpr char x_[2 * kWaveTokens * kRowBytes] = {};  // of all, so that rows can be compared
  std::vector<Line> heap_;
  std::vector<Line> local_;
  std::vector<float> weights_;
};

/// All of a rank's dispatchers, each with a group of its own.
template <class Group>
class Dispatchers {
 public:
  Dispatchers(const Rank& rank, std::vector<Group> groups) : groups_(std::move(groups)) {
    for (int i = 0; i < kDispatchers; ++i) dispatchers_.emplace_back(rank.call, NotingFabric{&rows}, i);
    steps_.resize(kDispatchers);
  }

  /// Until none gets on. True when all have finished.
  bool run() {
    bool advanced = true;
    while (advanced) {
      advanced = false;
      for (std::size_t i = 0; i < dispatchers_.size(); ++i) {
        if (steps_[i] == Step::finished || steps_[i] == Step::failed) continue;
        steps_[i] = dispatchers_[i].step(groups_[i]);
        advanced = advanced || steps_[i] != Step::idle;
      }
    }
    return std::count(steps_.begin(), steps_.end(), Step::finished) == kDispatchers;
  }
  const Wait& wait(std::size_t dispatcher) const { return dispatchers_[dispatcher].wait(); }
  Step step(std::size_t dispatcher) const { return steps_[dispatcher]; }

  std::vector<Row> rows;

 private:
  std::vector<Group> groups_;
  std::vector<Dispatcher<Group, NotingFabric>> dispatchers_;
  std::vector<Step> steps_ = std::vector<Step>(kDispatchers, Step::idle);
};

/// What dispatchers send that plan alone.
Sent sent_alone(std::int64_t num_tokens) {
  const Rank rank(num_tokens);
  Dispatchers<SoloGroup> dispatchers(rank, std::vector<SoloGroup>(kDispatchers));
  EXPECT_TRUE(dispatchers.run());
  return rank.sent(dispatchers.rows);
}

constexpr std::int64_t kOneWave = 70;    // of 18 chunks, the last not full: two planners have none
constexpr std::int64_t kTwoWaves = 124;  // the first of 20 chunks, so that they are counted by sets, too

/// What a GPU does on warps and on the consumers of a block.
TEST(Dispatcher, a_wave_planned_by_groups_of_several_threads_is_the_same) {
  for (const std::int64_t num_tokens : {kOneWave, std::int64_t{kWaveTokens}}) {
    const Rank rank(num_tokens);
    const auto each_chunk = [&](const auto& run) {
      for (int chunk = 0; chunk < rank.cut().num_chunks; ++chunk) {
        using Eight = test::Lanes<8>;
        Eight lanes;
        lanes.run([&](const Eight::Group& group) { run(ChunkPlanner<Eight::Group>(rank.call, 0, 0, rank.cut(), chunk), group); });
      }
    };
    each_chunk([](const auto& planner, const auto& group) { EXPECT_TRUE(planner.count(group)); });
    each_chunk([](const auto& planner, const auto& group) { planner.place(group); });
    EXPECT_EQ(rank.sent({}).images, sent_alone(num_tokens).images);
  }
}

/// Others that plan one chunk, as an engine may have them.
struct Others {
  PlanState state = PlanState::awaited;
  bool place = false;  ///< they can be relied on to
  int asked = 0;
  int relied_on = 0;
};

struct HelpedGroup : SoloGroup {
  Others* others;
  PlanState plan_state() const {
    ++others->asked;
    return others->state;
  }
  bool leaves_placing() const {
    others->relied_on += others->place ? 1 : 0;
    return others->place;
  }
};

class HelpedDispatcher : public testing::TestWithParam<std::int64_t> {
 protected:
  HelpedDispatcher() {
    for (Others& one : others) groups_.push_back(HelpedGroup{{}, &one});
    dispatchers = std::make_unique<Dispatchers<HelpedGroup>>(rank, groups_);
  }
  /// The others of every chunk count it.
  void count_all(bool place) {
    for (int chunk = 0; chunk < rank.cut().num_chunks; ++chunk) {
      EXPECT_TRUE(rank.planner(chunk).count(SoloGroup{}));
      others[static_cast<std::size_t>(chunk)].state = PlanState::counted;
      others[static_cast<std::size_t>(chunk)].place = place;
    }
  }
  void place(int chunk) {
    rank.planner(chunk).place(SoloGroup{});
    join(&rank.call.counters().placed[0], std::uint64_t{1});
  }
  bool has_chunk(std::size_t dispatcher) const { return static_cast<int>(dispatcher) < rank.cut().num_chunks; }

  Rank rank{GetParam()};
  std::vector<Others> others = std::vector<Others>(kDispatchers);
  std::unique_ptr<Dispatchers<HelpedGroup>> dispatchers;

 private:
  std::vector<HelpedGroup> groups_;
};

TEST_P(HelpedDispatcher, waits_for_others_and_leaves_counting_and_placing_to_them) {
  const std::uint64_t empty = kDispatchers - static_cast<std::uint64_t>(rank.cut().num_chunks);
  EXPECT_FALSE(dispatchers->run());
  EXPECT_EQ(rank.num_planned(), empty);  // nothing to wait for
  EXPECT_EQ(dispatchers->step(0), Step::idle);
  EXPECT_EQ(dispatchers->wait(0).signal, SignalKind::planned);
  count_all(true);
  EXPECT_FALSE(dispatchers->run());
  EXPECT_EQ(rank.num_planned(), kDispatchers);
  EXPECT_EQ(rank.num_placed(), empty);
  EXPECT_FALSE(dispatchers->rows.empty());  // they do not wait for the lists
  EXPECT_EQ(dispatchers->wait(0).signal, SignalKind::placed);
  for (int chunk = 0; chunk < rank.cut().num_chunks; ++chunk) place(chunk);
  EXPECT_TRUE(dispatchers->run());
  EXPECT_EQ(rank.num_placed(), kDispatchers);
  for (std::size_t i = 0; i < others.size(); ++i) EXPECT_EQ(others[i].relied_on, has_chunk(i) ? 1 : 0);
  EXPECT_EQ(rank.sent(dispatchers->rows), sent_alone(GetParam()));
}

TEST_P(HelpedDispatcher, places_what_others_have_counted_and_left_and_counts_nothing_twice) {
  count_all(false);
  EXPECT_TRUE(dispatchers->run());
  EXPECT_EQ(rank.sent(dispatchers->rows), sent_alone(GetParam()));
}

TEST_P(HelpedDispatcher, plans_what_others_leave_and_asks_of_chunks_of_the_first_wave_alone) {
  for (Others& one : others) one.state = PlanState::left;
  EXPECT_TRUE(dispatchers->run());
  for (std::size_t i = 0; i < others.size(); ++i) EXPECT_EQ(others[i].asked, has_chunk(i) ? 1 : 0);
  EXPECT_EQ(rank.sent(dispatchers->rows), sent_alone(GetParam()));
}

/// They stop at a wrong id, of which the dispatcher tells.
TEST_P(HelpedDispatcher, names_the_wrong_id_that_others_have_met) {
  constexpr std::size_t kWrong = 5 * kPlanningTokens * 3 + 1;  // of chunk 5
  rank.ids_[kWrong] = 6;
  for (Others& one : others) one.state = PlanState::left;
  EXPECT_FALSE(rank.planner(5).count(SoloGroup{}));
  EXPECT_FALSE(dispatchers->run());
  EXPECT_EQ(dispatchers->step(5), Step::failed);
  EXPECT_EQ(dispatchers->wait(5).signal, SignalKind::wrong_id);
  EXPECT_EQ(dispatchers->wait(5).expected, kWrong);
}

INSTANTIATE_TEST_SUITE_P(Tokens, HelpedDispatcher, testing::Values(kOneWave, kTwoWaves));

}  // namespace
}  // namespace flashmoe
