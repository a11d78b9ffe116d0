// A rank's scratch: every view the actors use starts and ends inside its own slice.
#include "actors/local_layout.hpp"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <memory>
#include <vector>

#include "actors/call.hpp"

namespace flashmoe {
namespace {

struct Drawn {
  Geometry geometry;
  Roster roster;
};

Drawn draw() {
  const auto between = [](int low, int high) { return *rc::gen::inRange(low, high + 1); };
  Geometry g;
  g.num_ranks = between(1, 6);
  g.num_local_experts = between(1, 5);
  g.hidden = 8 * between(1, 20);
  g.intermediate = 8 * between(1, 20);
  g.top_k = between(1, 5);
  g.element_bytes = *rc::gen::element(2, 4, 8);
  g.wave_tokens = between(1, 40);
  g.max_tokens = 3 * g.wave_tokens;
  g.wave_ring = between(1, 4);
  g.lined_tokens = between(0, 30);
  g.listed_tokens = between(0, g.wave_tokens);
  g.slot_block = between(1, 8);
  g.token_block = between(1, 8);
  g.pre_reduced = between(0, 1) == 1;
  g.list_weights = g.pre_reduced || between(0, 1) == 1;
  g.num_result_cells = g.pre_reduced ? std::max(g.top_k, g.num_ranks) : g.top_k;
  g.tile = {.rows = between(1, 32), .up_columns = 8 * between(1, 4), .down_columns = 8 * between(1, 4)};
  g.num_m_blocks = between(1, 9);
  return {g,
          {.num_dispatchers = between(1, 40), .num_processors = between(1, 5), .num_subscribers = between(1, g.num_ranks)}};
}

/// Slices in the order of their offsets, given as the actors see them.
class Slices {
 public:
  explicit Slices(const Call& call) : call_(call) {}

  /// A slice that begins at `first` and whose last element is `last` with `count` elements of T from there.
  template <class T>
  void add(const T* first, const T* last, std::int64_t count = 1) {
    const std::size_t begin = offset(first);
    RC_ASSERT(begin % Arena::kAlignment == 0u);
    RC_ASSERT(begin == align_up(end_, Arena::kAlignment));
    end_ = offset(last) + static_cast<std::size_t>(count) * sizeof(T);
  }
  std::size_t end() const { return end_; }

 private:
  template <class T>
  std::size_t offset(const T* pointer) const {
    return static_cast<std::size_t>(reinterpret_cast<const char*>(pointer) - call_.local);
  }
  const Call& call_;
  std::size_t end_ = 0;
};

RC_GTEST_PROP(LocalLayout, views_fill_their_slices_in_order_and_end_at_the_total, ()) {
  const auto [g, roster] = draw();
  Call call;
  call.heap.geometry = g;
  call.local_layout = make_local_layout(g, roster);
  const std::unique_ptr<char[]> memory(new char[call.local_layout.total_bytes]);
  call.local = memory.get();
  call.roster = roster;
  const LocalLayout& l = call.local_layout;
  const int waves = g.num_ranks * g.wave_ring;
  const int ranks = g.num_ranks;
  const int planners = num_planners(g, roster);
  const int slots = g.slot_tokens();
  const auto keys = std::int64_t{ranks} + g.num_experts();

  Slices slices(call);
  slices.add(&call.epoch_state(), &call.epoch_state());
  slices.add(&call.counters(), &call.counters());
  slices.add(&call.task_ring_state(), &call.task_ring_state());
  slices.add(call.local + l.task_cells, call.local + l.task_cells, std::int64_t{l.task_ring_capacity} * 8);
  slices.add(&call.m_block(0), &call.m_block(static_cast<std::uint32_t>(g.num_m_blocks - 1)));
  slices.add(&call.source_state(0), &call.source_state(ranks - 1));
  slices.add(&call.wave(0), &call.wave(waves - 1));
  slices.add(call.arrived_base(0), call.arrived_base(waves - 1), g.num_slot_blocks());
  slices.add(call.result_targets(0, 0), call.result_targets(g.wave_ring - 1, g.num_token_blocks() - 1), ranks);
  slices.add(call.set_counts(0), call.set_counts(num_chunk_sets(planners) - 1), keys);
  slices.add(call.chunk_counts(0), call.chunk_counts(planners - 1), keys);
  slices.add(call.chunk_cursors(0), call.chunk_cursors(planners - 1), keys);
  slices.add(call.chunk_slots(0), call.chunk_slots(planners - 1), ranks);
  slices.add(call.slot_map(0), call.slot_map(slots - 1), ranks);
  slices.add(call.pushed_rows(0), call.pushed_rows(roster.num_dispatchers - 1), ranks);
  call.rank = ranks;  // so that every destination's image is one to send
  slices.add(call.own_image(0, 0).words, call.own_image(ranks - 1, g.wave_ring - 1).words, max_image_words(g));
  call.rank = 0;
  slices.add(call.image(0).words, call.image(waves - 1).words, max_image_words(g));
  slices.add(call.expert_offsets(0), call.expert_offsets(waves - 1), g.num_local_experts + 1);
  slices.add(call.wave_base(0), call.wave_base(waves - 1), g.num_local_experts);
  slices.add(call.landed(0), call.landed(waves - 1), g.num_local_experts);
  slices.add(call.taken(0), call.taken(waves - 1), g.num_local_experts);
  slices.add(call.expert_counts(0), call.expert_counts(roster.num_subscribers - 1), g.num_local_experts);
  if (g.pre_reduced) slices.add(call.slot_routes(0, 0), call.slot_routes(waves - 1, slots - 1), g.top_k);
  slices.add(call.header_words(0), call.header_words(ranks - 1), kHeaderWords);
  if (g.id_tokens() > 0) {
    slices.add(call.token_slots(0), call.token_slots(roster.num_subscribers - 1), g.id_tokens());
    slices.add(call.source_ids(0), call.source_ids(ranks - 1), id_words(g, g.id_tokens(), g.list_weights));
  }
  slices.add(call.lined_ready(0), call.lined_ready(ranks - 1));
  if (g.lined_tokens > 0) slices.add(call.lined_arrivals(0), call.lined_arrivals(ranks - 1), lined_slot_blocks(g));
  slices.add(call.lined_cursors(0), call.lined_cursors(roster.num_dispatchers - 1), ranks);
  if (g.lined_tokens > 0) slices.add(call.lined_row(0, 0), call.lined_row(ranks - 1, g.lined_tokens - 1), g.row_bytes());
  slices.add(call.intermediate_row(0, 0),
             call.intermediate_row(static_cast<std::uint32_t>(g.num_m_blocks - 1), static_cast<std::uint32_t>(g.tile.rows - 1)),
             std::int64_t{g.intermediate} * g.element_bytes);
  if (g.pre_reduced) {
    slices.add(call.partial_row(0, 0), call.partial_row(waves - 1, std::int64_t{slots} * g.top_k - 1),
               std::int64_t{g.hidden} * accumulator_bytes(g));
  }
  RC_ASSERT(align_up(slices.end(), Arena::kAlignment) == l.total_bytes);
}

/// Up and down batches of all m-blocks in their places, down batches of as many before them, and the exits.
RC_GTEST_PROP(LocalLayout, the_task_ring_holds_what_may_not_be_overwritten, ()) {
  const auto [g, roster] = draw();
  const std::uint32_t capacity = task_ring_capacity(g);
  RC_ASSERT((capacity & (capacity - 1)) == 0u);
  RC_ASSERT(std::int64_t{capacity} > 3 * std::int64_t{g.num_m_blocks});
  if (g.pre_reduced && g.num_ranks * g.wave_ring >= MBlock::kMaxSegments) {
    RC_ASSERT(std::int64_t{capacity} > 2 * std::int64_t{g.num_m_blocks} * MBlock::kMaxSegments);
  }
}

}  // namespace
}  // namespace flashmoe
