// Combiners alone: who takes which parts of a call, where faster ones come at its end.
#include "actors/combiner.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "actors/call.hpp"
#include "actors/group.hpp"
#include "core/heap_layout.hpp"

namespace flashmoe {
namespace {

/// One rank whose results have all come: one choice a token, of weight 1, `waves` waves of 4 tokens, two of them in flight.
class Returned {
 public:
  Returned(std::int64_t tokens, int num_helpers)
      : ids_(static_cast<std::size_t>(tokens), 0), weights_(ids_.size(), 1.0f), y_(ids_.size() * kHidden, -1.0) {
    const Geometry geometry{.num_ranks = 1, .num_local_experts = 1, .hidden = kHidden, .intermediate = 8, .top_k = 1,
                            .element_bytes = 8, .max_tokens = 64, .wave_tokens = 4, .wave_ring = 2, .lined_tokens = 8,
                            .slot_block = 64, .token_block = 4, .num_result_cells = 1,
                            .tile = {.rows = 4, .up_columns = 8, .down_columns = 8}, .num_m_blocks = 4};
    call.heap = make_heap_layout(geometry);
    call.roster = {.num_dispatchers = 1, .num_processors = 1, .num_helpers = num_helpers};
    call.local_layout = make_local_layout(geometry, call.roster);
    call.plan.wire_form = WireForm::counted;
    call.math.dtype = DType::fp64;
    call.num_tokens = tokens;
    call.topk_ids = ids_.data();
    call.topk_weights = weights_.data();
    call.y = y_.data();
    local_ = std::make_unique<char[]>(call.local_layout.total_bytes);
    heap_ = std::make_unique<char[]>(call.heap.total_bytes);
    call.local = local_.get();
    call.heap_base[0] = heap_.get();
    call.counters().pushed = static_cast<std::uint64_t>(call.own_waves());
  }

  /// Steps a combiner until it has nothing to do.
  Step run(Combiner<SoloGroup>& combiner) const {
    Step step = Step::advanced;
    while (step == Step::advanced) step = combiner.step(SoloGroup{});
    return step;
  }
  std::uint64_t claims() const { return call.counters().combine_claims; }
  std::size_t combined() const { return static_cast<std::size_t>(std::count(y_.begin(), y_.end(), 0.0)) / kHidden; }

  /// The call is lined, and all of its lines have come.
  void bring_lines(int num_dispatchers) {
    call.plan.wire_form = WireForm::lined;
    call.roster.num_dispatchers = num_dispatchers;
    call.epoch = call.generation = 1;
    for (std::int64_t token = 0; token < call.num_tokens; ++token) {
      auto* line = call.heap_at<Line>(call.heap.lined_result(call.epoch, token, 0));
      for (int i = 0; i < call.heap.segment_lines; ++i) line[i].tag = line_tag(call.generation, call.epoch);
    }
  }
  void forget() { std::fill(y_.begin(), y_.end(), -1.0); }
  std::vector<std::int64_t> tokens_combined() const {
    std::vector<std::int64_t> tokens;
    for (std::size_t at = 0; at < y_.size(); at += kHidden) {
      if (y_[at] == 0.0) tokens.push_back(static_cast<std::int64_t>(at) / kHidden);
    }
    return tokens;
  }

  Call call;

 private:
  static constexpr int kHidden = 8;
  std::vector<std::int32_t> ids_;
  std::vector<float> weights_;
  std::vector<double> y_;
  std::unique_ptr<char[]> local_;
  std::unique_ptr<char[]> heap_;
};

TEST(Combiner, leaves_the_last_wave_to_helpers_and_the_last_parts_one_each) {
  const auto left_to = [](std::int64_t tokens, int num_helpers) {
    const Returned rank(tokens, num_helpers);
    Combiner<SoloGroup> beside_dispatcher(rank.call, 0);
    EXPECT_EQ(rank.run(beside_dispatcher), Step::finished);
    const std::size_t before = rank.combined();
    auto helper = Combiner<SoloGroup>::helper(rank.call, 0);
    EXPECT_EQ(rank.run(helper), Step::finished);
    EXPECT_EQ(rank.combined(), static_cast<std::size_t>(tokens));
    return rank.combined() - before;
  };
  EXPECT_EQ(left_to(4, 1), 4u);  // one wave
  EXPECT_EQ(left_to(6, 1), 2u);  // two
  EXPECT_EQ(left_to(6, 5), 5u);  // more than the last wave has
}

TEST(Combiner, takes_every_part_where_no_helpers_come) {
  const Returned rank(4, 0);
  Combiner<SoloGroup> combiner(rank.call, 0);
  EXPECT_EQ(rank.run(combiner), Step::finished);
  EXPECT_EQ(rank.combined(), 4u);
}

TEST(Combiner, helpers_take_one_part_each_where_there_is_one_for_every_part) {
  const Returned rank(4, 4);
  Combiner<SoloGroup> beside_dispatcher(rank.call, 0);
  EXPECT_EQ(rank.run(beside_dispatcher), Step::finished);
  EXPECT_EQ(rank.combined(), 0u);
  for (int index = 0; index < 4; ++index) {
    auto helper = Combiner<SoloGroup>::helper(rank.call, index);
    EXPECT_EQ(rank.run(helper), Step::finished);
    EXPECT_EQ(helper.step(SoloGroup{}), Step::finished);
    EXPECT_EQ(rank.combined(), static_cast<std::size_t>(index) + 1);
  }
  EXPECT_EQ(rank.claims(), 4u);
}

TEST(Combiner, leaves_no_part_that_a_later_wave_waits_for) {
  const Returned rank(12, 100);  // of three waves, the last in the first one's place
  Combiner<SoloGroup> combiner(rank.call, 0);
  EXPECT_EQ(rank.run(combiner), Step::finished);
  EXPECT_EQ(rank.combined(), 4u);
  EXPECT_EQ(rank.claims(), 4u);
  EXPECT_EQ(rank.call.counters().combined[0], 4u);
}

/// Tokens of a lined call, of one part each, that a combiner sums when all lines have come.
std::vector<std::int64_t> summed(Returned& rank, Combiner<SoloGroup> combiner) {
  rank.forget();
  EXPECT_EQ(rank.run(combiner), Step::finished);
  return rank.tokens_combined();
}

TEST(Combiner, of_a_lined_call_helpers_have_the_last_parts_one_each) {
  using Tokens = std::vector<std::int64_t>;
  Returned rank(6, 3);
  rank.bring_lines(2);
  EXPECT_EQ(summed(rank, Combiner<SoloGroup>(rank.call, 0)), (Tokens{0, 2}));
  EXPECT_EQ(summed(rank, Combiner<SoloGroup>(rank.call, 1)), (Tokens{1}));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(summed(rank, Combiner<SoloGroup>::helper(rank.call, i)), (Tokens{3 + i}));
}

TEST(Combiner, of_a_lined_call_each_combiner_beside_a_dispatcher_has_a_part_before_helpers_have) {
  using Tokens = std::vector<std::int64_t>;
  Returned rank(3, 100);
  rank.bring_lines(2);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(summed(rank, Combiner<SoloGroup>(rank.call, i)), (Tokens{i}));
  EXPECT_EQ(summed(rank, Combiner<SoloGroup>::helper(rank.call, 0)), (Tokens{2}));
  EXPECT_EQ(summed(rank, Combiner<SoloGroup>::helper(rank.call, 1)), (Tokens{}));
}

}  // namespace
}  // namespace flashmoe
