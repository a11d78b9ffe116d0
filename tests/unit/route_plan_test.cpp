// From ids to slots and route lists, against the definition written out.
#include "actors/route_plan.hpp"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <array>
#include <vector>

#include "core/route_image.hpp"
#include "support/lanes.hpp"

namespace flashmoe {
namespace {

struct Wave {
  Geometry g;
  std::vector<std::int32_t> ids;  // [tokens][top_k]
  std::vector<float> weights;
  std::int64_t tokens = 0;
};

Wave draw_wave() {
  const auto between = [](int low, int high) { return *rc::gen::inRange(low, high + 1); };
  Wave wave;
  Geometry& g = wave.g;
  g.num_ranks = between(1, 5);
  g.num_local_experts = between(1, 4);
  g.hidden = g.intermediate = 8;
  g.element_bytes = 2;
  g.top_k = between(1, 5);
  g.wave_tokens = between(1, 30);
  g.wave_ring = 1;
  g.slot_block = g.token_block = between(1, 5);
  g.list_weights = true;
  wave.tokens = between(0, g.wave_tokens);
  for (std::int64_t route = 0; route < wave.tokens * g.top_k; ++route) {
    wave.ids.push_back(between(-1, g.num_experts() - 1));
    wave.weights.push_back(static_cast<float>(route) + 0.5f);
  }
  return wave;
}

/// One destination's image, as the definition says.
struct Wanted {
  std::vector<std::int64_t> slot_tokens;           ///< token of each slot
  std::vector<std::vector<std::int64_t>> routes;   ///< [local expert] flat routes in (token, choice) order
};
Wanted wanted_of(const Wave& wave, int destination) {
  Wanted wanted;
  wanted.routes.resize(static_cast<std::size_t>(wave.g.num_local_experts));
  for (std::int64_t token = 0; token < wave.tokens; ++token) {
    bool goes = false;
    for (int choice = 0; choice < wave.g.top_k; ++choice) {
      const std::int64_t route = token * wave.g.top_k + choice;
      const int id = wave.ids[static_cast<std::size_t>(route)];
      if (id < 0 || id / wave.g.num_local_experts != destination) continue;
      goes = true;
      wanted.routes[static_cast<std::size_t>(id % wave.g.num_local_experts)].push_back(route);
    }
    if (goes) wanted.slot_tokens.push_back(token);
  }
  return wanted;
}

RC_GTEST_PROP(RoutePlan, chunks_share_a_wave_in_order_and_in_whole_pieces, ()) {
  const std::int64_t tokens = *rc::gen::inRange(0, 300);
  const int num_planners = *rc::gen::inRange(1, 8);
  const WaveCut cut = cut_wave(tokens, num_planners);
  std::int64_t next = 0;
  for (int chunk = 0; chunk < num_planners; ++chunk) {
    const TokenRange range = cut.chunk(chunk);
    RC_ASSERT(range.begin == next);
    RC_ASSERT(range.begin <= range.end);
    RC_ASSERT(range.size() == 0 || range.begin % kPlanningTokens == 0);
    RC_ASSERT((range.size() > 0) == (chunk < cut.num_chunks));
    for (std::int64_t token = range.begin; token < range.end; ++token) {
      RC_ASSERT(cut.chunk_of(static_cast<std::uint32_t>(token)) == chunk);
    }
    next = range.end;
  }
  RC_ASSERT(next == tokens);
}

RC_GTEST_PROP(RoutePlan, shares_are_in_order_complete_and_even, ()) {
  const std::int64_t count = *rc::gen::inRange(0, 1000);
  const int parts = *rc::gen::inRange(1, 40);
  std::int64_t next = 0;
  for (int part = 0; part < parts; ++part) {
    const TokenRange share = share_of(count, parts, part);
    RC_ASSERT(share.begin == next);
    RC_ASSERT(share.size() == count / parts || share.size() == count / parts + 1);
    next = share.end;
  }
  RC_ASSERT(next == count);
}

RC_GTEST_PROP(RoutePlan, counts_and_slots_of_a_chunk_are_those_of_its_tokens, ()) {
  const Wave wave = draw_wave();
  const Geometry& g = wave.g;
  const std::int64_t begin = *rc::gen::inRange<std::int64_t>(0, wave.tokens + 1);
  const TokenRange chunk{begin, *rc::gen::inRange<std::int64_t>(begin, wave.tokens + 1)};
  std::vector<std::uint32_t> counts(static_cast<std::size_t>(g.num_ranks + g.num_experts()), 77);
  std::vector<std::uint32_t> slots(static_cast<std::size_t>(g.wave_tokens * g.num_ranks), 88);
  const int own_rank = *rc::gen::inRange(-1, g.num_ranks);
  RC_ASSERT(count_chunk(SoloGroup{}, g, wave.ids.data(), chunk, own_rank, {.own = counts.data()},
                        [&](std::int64_t token) { return slots.data() + token * g.num_ranks; }));
  std::vector<std::uint32_t> wanted(counts.size(), 0);
  for (std::int64_t token = chunk.begin; token < chunk.end; ++token) {
    for (int rank = 0; rank < g.num_ranks; ++rank) {
      if (rank == own_rank) ++wanted[static_cast<std::size_t>(rank)];
      if (rank == own_rank || !goes_to(g, wave.ids.data() + token * g.top_k, rank)) continue;
      RC_ASSERT(slots[static_cast<std::size_t>(token * g.num_ranks + rank)] == wanted[static_cast<std::size_t>(rank)]++);
    }
    for (int choice = 0; choice < g.top_k; ++choice) {
      const int id = wave.ids[static_cast<std::size_t>(token * g.top_k + choice)];
      if (id >= 0) ++wanted[static_cast<std::size_t>(g.num_ranks + id)];
    }
  }
  RC_ASSERT(counts == wanted);
}

/// The image of one destination as the receiver of the lined form builds it: one worker, all tokens.
RC_GTEST_PROP(RoutePlan, images_list_each_experts_routes_in_order_with_slots_and_weights, ()) {
  const Wave wave = draw_wave();
  const Geometry& g = wave.g;
  const int destination = *rc::gen::inRange(0, g.num_ranks);
  const Wanted wanted = wanted_of(wave, destination);
  std::vector<std::uint64_t> words(static_cast<std::size_t>(max_image_words(g)), ~std::uint64_t{0});
  const RouteImage image{words.data(), g.num_local_experts};
  std::vector<std::uint32_t> cursors;
  for (const auto& routes : wanted.routes) cursors.push_back(static_cast<std::uint32_t>(routes.size()));
  const std::uint32_t entries =
      write_image_head(SoloGroup{}, image, static_cast<std::uint32_t>(wanted.slot_tokens.size()), cursors.data());
  const std::vector<std::uint32_t> offsets = cursors;
  const auto slot_of = [&](std::int64_t token, int) {
    const auto& tokens = wanted.slot_tokens;
    return static_cast<std::uint32_t>(std::find(tokens.begin(), tokens.end(), token) - tokens.begin());
  };
  place_routes(SoloGroup{}, g,
               {.ids = wave.ids.data(), .weights = wave.weights.data(), .tokens = {0, wave.tokens},
                .only_destination = destination, .first_cursor = destination * g.num_local_experts},
               cursors.data(), [&](int) { return image; }, [entries](int) { return entries; }, slot_of);

  RC_ASSERT(image.num_slots() == wanted.slot_tokens.size());
  RC_ASSERT(image.num_entries() == entries);
  std::uint32_t index = 0;
  for (int expert = 0; expert < g.num_local_experts; ++expert) {
    RC_ASSERT(offsets[static_cast<std::size_t>(expert)] == index);
    RC_ASSERT(image.counts()[expert] == wanted.routes[static_cast<std::size_t>(expert)].size());
    for (const std::int64_t route : wanted.routes[static_cast<std::size_t>(expert)]) {
      const RouteEntry entry = image.entry(index);
      RC_ASSERT(entry.return_row == static_cast<std::uint32_t>(route));
      RC_ASSERT(wanted.slot_tokens[entry.slot] == route / g.top_k);
      RC_ASSERT(image.weights(entries)[index] == wave.weights[static_cast<std::size_t>(route)]);
      ++index;
    }
  }
  RC_ASSERT(index == entries);
}

RC_GTEST_PROP(RoutePlan, a_group_counts_the_tokens_that_go_to_a_rank_as_one_thread_does, ()) {
  const Wave wave = draw_wave();
  const int destination = *rc::gen::inRange(0, wave.g.num_ranks);
  std::uint32_t wanted = 0;
  for (std::int64_t token = 0; token < wave.tokens; ++token) {
    wanted += goes_to(wave.g, wave.ids.data() + token * wave.g.top_k, destination) ? 1 : 0;
  }
  RC_ASSERT(count_tokens_to(SoloGroup{}, wave.g, wave.ids.data(), wave.tokens, destination) == wanted);
  using Four = test::Lanes<4>;
  std::array<std::uint32_t, 4> counts{};
  Four lanes;
  lanes.run([&](const Four::Group& group) {
    counts[static_cast<std::size_t>(group.index())] =
        count_tokens_to(group, wave.g, wave.ids.data(), wave.tokens, destination);
  });
  for (const std::uint32_t count : counts) RC_ASSERT(count == wanted);
}

TEST(RoutePlan, the_first_wrong_id_is_found_and_only_in_its_range) {
  Geometry g;
  g.num_ranks = 2;
  g.num_local_experts = 2;
  g.top_k = 2;
  const std::vector<std::int32_t> ids{0, 3, -1, 2, 4, 0, -2, 1};
  EXPECT_EQ(find_wrong_id(SoloGroup{}, g, ids.data(), {0, 2}), -1);
  EXPECT_EQ(find_wrong_id(SoloGroup{}, g, ids.data(), {0, 4}), 4);
  EXPECT_EQ(find_wrong_id(SoloGroup{}, g, ids.data(), {3, 4}), 6);
  EXPECT_EQ(find_wrong_id(SoloGroup{}, g, ids.data(), {2, 2}), -1);
}

}  // namespace
}  // namespace flashmoe
