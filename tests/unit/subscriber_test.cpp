// The subscriber alone: what it makes of the rank's own list, which others may overwrite once its routes are taken.
#include "actors/subscriber.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <vector>

#include "actors/call.hpp"
#include "actors/group.hpp"
#include "actors/line_io.hpp"

namespace flashmoe {
namespace {

constexpr std::size_t kExperts = 12;  // more than a thread looks at together

struct NoFabric {
  void signal(int, std::size_t, std::uint64_t) const {}
};

/// One rank whose only wave has been planned: counts[e] routes to expert e.
class Planned {
 public:
  explicit Planned(const std::vector<std::uint32_t>& counts)
      : num_entries_(std::accumulate(counts.begin(), counts.end(), 0u)) {
    call.heap.geometry = {.num_ranks = 1, .num_local_experts = static_cast<int>(counts.size()), .hidden = 16,
                          .intermediate = 32, .top_k = 1, .element_bytes = 4, .max_tokens = 64, .wave_tokens = 64,
                          .wave_ring = 1, .slot_block = 64, .token_block = 64, .num_result_cells = 1,
                          .tile = {.rows = 4, .up_columns = 16, .down_columns = 16}, .num_m_blocks = 4};
    call.local_layout = make_local_layout(call.geometry(), call.roster);
    call.plan.wire_form = WireForm::counted;
    call.num_tokens = num_entries_;
    memory_ = std::make_unique<char[]>(call.local_layout.total_bytes);
    call.local = memory_.get();
    call.counters().placed[0] = static_cast<std::uint64_t>(call.num_planners());
    const RouteImage image = call.image(0);
    image.set_header(num_entries_, num_entries_);
    std::copy(counts.begin(), counts.end(), image.counts());
    for (std::uint32_t entry = 0; entry < num_entries_; ++entry) image.set_entry(entry, {entry, entry});
  }

  bool all_landed() const {
    const std::uint32_t* landed = call.landed(0);
    return std::accumulate(landed, landed + call.geometry().num_local_experts, 0u) == num_entries_;
  }
  void plan_next_wave() const {
    std::memset(call.image(0).words, 0x7f, static_cast<std::size_t>(call.local_layout.image_words) * sizeof(std::uint64_t));
  }

  Call call;

 private:
  std::uint32_t num_entries_;
  std::unique_ptr<char[]> memory_;
};

/// Others run whenever the subscriber's threads confer: as fast as can be, the wave's routes are computed, and planners
/// write the next wave's list where this one was.
class FastOthers : public SoloGroup {
 public:
  explicit FastOthers(const Planned& rank) : rank_(rank) {}
  void sync() const {
    if (rank_.all_landed()) rank_.plan_next_wave();
  }
  Scan scan(std::uint32_t value) const {
    sync();
    return SoloGroup::scan(value);
  }

 private:
  const Planned& rank_;
};

TEST(Subscriber, does_not_read_the_own_list_once_all_its_routes_can_be_taken) {
  std::vector<std::uint32_t> counts(kExperts);
  counts[0] = 3;
  counts[1] = 2;
  const Planned rank(counts);
  Subscriber<FastOthers, NoFabric> subscriber(rank.call, NoFabric{}, 0);
  EXPECT_EQ(subscriber.step(FastOthers(rank)), Step::finished);
  const std::uint32_t* offsets = rank.call.expert_offsets(0);
  for (std::size_t expert = 0; expert < kExperts; ++expert) {
    EXPECT_EQ(rank.call.landed(0)[expert], counts[expert]) << expert;
    EXPECT_EQ(offsets[expert + 1] - offsets[expert], counts[expert]) << expert;
  }
  const auto told = SourceProgress::of(rank.call.counters().progress[0]);
  EXPECT_EQ(told.version, 1u);
  EXPECT_EQ(told.closed_waves, kAllWavesClosed);
}

TEST(Subscriber, of_a_rank_without_tokens_says_that_nothing_is_to_come) {
  const std::vector<std::uint32_t> counts(kExperts);
  const Planned rank(counts);
  Subscriber<SoloGroup, NoFabric> subscriber(rank.call, NoFabric{}, 0);
  EXPECT_EQ(subscriber.step(SoloGroup{}), Step::finished);
  EXPECT_EQ(SourceProgress::of(rank.call.counters().progress[0]).closed_waves, kAllWavesClosed);
  EXPECT_EQ(rank.call.epoch_state().num_waves[0], 0u);
}

/// Rank 0 of two, which has read the header of rank 1's 3 tokens and waits for its ids.
TEST(Subscriber, names_what_is_missing_of_a_rank_that_sends_ids) {
  for (const WireForm wire_form : {WireForm::counted, WireForm::lined}) {
    Geometry g{.num_ranks = 2, .num_local_experts = 2, .hidden = 16, .intermediate = 32, .top_k = 1, .element_bytes = 4,
               .max_tokens = 64, .wave_tokens = 64, .wave_ring = 2, .slot_block = 64, .token_block = 64, .num_result_cells = 1,
               .tile = {.rows = 4, .up_columns = 16, .down_columns = 16}, .num_m_blocks = 4};
    g.lined_tokens = wire_form == WireForm::lined ? 64 : 0;
    g.listed_tokens = 64;
    Call call;
    call.heap = make_heap_layout(g);
    call.roster.num_subscribers = 1;
    call.local_layout = make_local_layout(g, call.roster);
    call.plan.wire_form = wire_form;
    call.layer_id = 5;
    call.plan_hash = 6;
    std::vector<Line> heap(call.heap.total_bytes / sizeof(Line) + 1);
    std::vector<Line> local(call.local_layout.total_bytes / sizeof(Line) + 1);
    call.heap_base[0] = reinterpret_cast<char*>(heap.data());
    call.local = reinterpret_cast<char*>(local.data());
    call.epoch_state().wave_sequence[1] = 9;
    const std::uint64_t header[kHeaderWords] = {0, 5, 6, 3, 1, 1};
    store_line(call.heap_at<Line>(call.heap.header(1, 0)), header, kHeaderWords, line_tag(call.generation, 0));
    Subscriber<SoloGroup, NoFabric> subscriber(call, {}, 0);
    while (subscriber.step(SoloGroup{}) == Step::advanced) {
    }
    EXPECT_EQ(subscriber.wait().signal, wire_form == WireForm::lined ? SignalKind::ids : SignalKind::list);
    EXPECT_EQ(subscriber.wait().peer, 1);
    EXPECT_EQ(subscriber.wait().expected, wire_form == WireForm::lined ? 0u : 9u);  // epoch, or the wave's sequence
  }
}

/// A subscriber's group where others make lists, and tell whole waves as landed.
struct HelpedGroup : SoloGroup {
  void ask_for_list(int, std::int64_t) const {}
  ListState list_state(int) const { return ListState::made; }
};

/// Otherwise its older look could take back what they have told in the meantime.
TEST(Subscriber, tells_no_part_of_a_wave_that_others_tell_whole) {
  Geometry g{.num_ranks = 2, .num_local_experts = 2, .hidden = 16, .intermediate = 32, .top_k = 1, .element_bytes = 4,
             .max_tokens = 64, .wave_tokens = 64, .wave_ring = 2, .slot_block = 2, .token_block = 64, .num_result_cells = 1,
             .tile = {.rows = 4, .up_columns = 16, .down_columns = 16}, .num_m_blocks = 4};
  g.listed_tokens = 64;
  Call call;
  call.heap = make_heap_layout(g);
  call.roster.num_subscribers = 1;
  call.local_layout = make_local_layout(g, call.roster);
  call.plan.wire_form = WireForm::counted;
  std::vector<Line> heap(call.heap.total_bytes / sizeof(Line) + 1);
  std::vector<Line> local(call.local_layout.total_bytes / sizeof(Line) + 1);
  call.heap_base[0] = reinterpret_cast<char*>(heap.data());
  call.local = reinterpret_cast<char*>(local.data());
  const std::uint64_t header[kHeaderWords] = {0, 0, 0, 4, 1, 1};
  store_line(call.heap_at<Line>(call.heap.header(1, 0)), header, kHeaderWords, line_tag(call.generation, 0));
  const int slot = call.wave_slot(1, 0);  // four rows of expert 0, whose list others have made
  call.wave(slot) = {4, 4, 0, 0, 0};
  call.image(slot).set_header(4, 4);
  for (std::uint32_t entry = 0; entry < 4; ++entry) call.image(slot).set_entry(entry, {entry, entry});
  call.expert_offsets(slot)[1] = call.expert_offsets(slot)[2] = 4;
  Subscriber<HelpedGroup, NoFabric> subscriber(call, {}, 0);
  const auto run = [&] {
    while (subscriber.step(HelpedGroup{}) == Step::advanced) {
    }
  };
  *call.heap_at<std::uint64_t>(call.heap.arrival(1, 0, 0)) = 2;  // the first of two slot blocks
  run();
  EXPECT_EQ(call.landed(slot)[0], 0u);
  EXPECT_EQ(subscriber.wait().signal, SignalKind::arrival);
  *call.heap_at<std::uint64_t>(call.heap.arrival(1, 0, 1)) = 2;
  run();
  EXPECT_EQ(call.landed(slot)[0], 4u);
}

}  // namespace
}  // namespace flashmoe
