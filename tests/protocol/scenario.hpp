// A random group, small enough that thousands run in seconds, and the calls it makes: everything drawn from one seed.
// All values are small integers, so that results are exact and must equal the reference bit by bit.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cpu/interleaver.hpp"
#include "support/batch.hpp"
#include "support/dice.hpp"
#include "support/poison.hpp"

namespace flashmoe::test {

struct Scenario {
  Problem problem;
  Geometry geometry;
  std::vector<Roster> rosters;              // [num_ranks]
  int flush_after_idle_steps = 4;
  std::vector<std::int64_t> max_tokens;     // [num_calls]
  std::vector<std::vector<Batch>> batches;  // [num_calls][num_ranks]

  std::string to_string() const {
    std::string text = fmt::format("{} wave_tokens={} ring={} lined={} listed={} tile={}x{}x{} m_blocks={} pre_reduced={}\n",
                                   flashmoe::to_string(problem), geometry.wave_tokens, geometry.wave_ring,
                                   geometry.lined_tokens, geometry.listed_tokens, geometry.tile.rows,
                                   geometry.tile.up_columns, geometry.tile.down_columns, geometry.num_m_blocks, geometry.pre_reduced);
    for (std::size_t call = 0; call < batches.size(); ++call) {
      text += fmt::format("call {}: max_tokens {}, tokens", call, max_tokens[call]);
      for (const Batch& batch : batches[call]) text += fmt::format(" {}", batch.num_tokens);
      text += '\n';
    }
    return text;
  }
};

/// Sizes the planner would never choose: every ring short, every block of a few rows.
inline Geometry small_geometry(const Problem& p, Dice& dice) {
  Geometry g;
  g.num_ranks = p.num_ranks;
  g.num_local_experts = p.num_local_experts();
  g.hidden = p.hidden;
  g.intermediate = p.intermediate;
  g.top_k = p.top_k;
  g.element_bytes = static_cast<int>(dtype_bytes(p.dtype));
  g.max_tokens = p.max_tokens;
  g.wave_tokens = dice.between(1, 6);
  g.wave_ring = dice.between(1, 3);
  g.listed_tokens = std::min(dice.pick({0, 2, 100}), g.wave_tokens);
  g.lined_tokens = p.wire_form == WireForm::counted ? 0 : static_cast<int>(p.max_tokens) / dice.between(1, 2);
  g.slot_block = dice.between(1, 3);
  g.token_block = dice.between(1, 3);
  g.pre_reduced = p.result_form == ResultForm::pre_reduced;
  g.list_weights = g.pre_reduced || p.weight_on_input;
  g.num_result_cells = g.pre_reduced ? std::max(p.top_k, p.num_ranks) : p.top_k;
  g.tile = {.rows = dice.pick({4, 8}),
            .up_columns = 8,
            .down_columns = dice.pick({8, 16}),
            .up_tiles_at_once = dice.pick({1, 2}),
            .down_tiles_at_once = dice.pick({1, 2}),
            .task_elements = dice.pick({4, 8}),
            .extra_rows = dice.pick({0, 1, 3})};
  g.num_m_blocks = dice.between(1, 3);
  return g;
}

/// At most as many tokens as fill three waves of a source.
inline std::int64_t draw_tokens(const Scenario& it, std::int64_t max_tokens, Dice& dice) {
  switch (dice.below(5)) {
    case 0: return 0;
    case 1: return max_tokens;
    case 2: return std::min<std::int64_t>(max_tokens, it.geometry.wave_tokens * dice.between(1, 3));
    default: return dice.between(0, static_cast<int>(max_tokens));
  }
}

inline Scenario make_scenario(std::uint64_t seed, int num_calls) {
  Dice dice(seed);
  Scenario it;
  Problem& p = it.problem;
  p.num_ranks = dice.pick({1, 2, 2, 3, 3, 4});
  p.num_experts = p.num_ranks * dice.between(1, 3);
  p.top_k = std::min(dice.between(1, 3), p.num_experts);
  p.hidden = dice.pick({8, 16, 24, 128, 248});  // of 128 doubles combiners take parts, of 248 dispatchers up to four
  p.intermediate = dice.pick({8, 16});
  p.dtype = DType::fp64;
  p.activation = dice.pick({Activation::identity, Activation::relu});
  p.gated = false;
  p.up_bias = dice.one_in(4);
  p.down_bias = dice.one_in(4);
  p.weight_on_input = dice.one_in(5);
  p.wire_form = dice.pick({WireForm::counted, WireForm::automatic});
  p.result_form = dice.pick({ResultForm::per_route, ResultForm::pre_reduced});
  p.max_tokens = 18;
  it.geometry = small_geometry(p, dice);
  p.max_tokens = it.geometry.max_tokens = 3 * std::max(it.geometry.wave_tokens, 2);
  it.geometry.lined_tokens = std::min(it.geometry.lined_tokens, static_cast<int>(p.max_tokens));
  for (int rank = 0; rank < p.num_ranks; ++rank) {
    it.rosters.push_back({.num_dispatchers = dice.one_in(4) ? dice.between(4, 12) : dice.between(1, 3),
                          .num_processors = dice.between(1, 3),
                          .num_subscribers = dice.between(1, p.num_ranks),
                          .num_helpers = dice.pick({0, 1, 4, 12})});
  }
  it.flush_after_idle_steps = dice.pick({1, 4, 20});

  const Routing routings[] = {Routing::distinct, Routing::any, Routing::any, Routing::all_to_one, Routing::last_rank,
                              Routing::masked};
  for (int call = 0; call < num_calls; ++call) {
    // A lined and a counted call may follow each other in any order.
    const bool lined = it.geometry.lined_tokens > 0 && dice.one_in(2);
    it.max_tokens.push_back(lined ? dice.between(1, it.geometry.lined_tokens) : p.max_tokens);
    const Routing routing = routings[dice.below(6)];
    std::vector<Batch> batches;
    for (int rank = 0; rank < p.num_ranks; ++rank) {
      batches.push_back(make_batch(p, draw_tokens(it, it.max_tokens.back(), dice),
                                   seed * 4096 + static_cast<std::uint64_t>(call * 64 + rank), routing,
                                   Values::small_integers));
    }
    it.batches.push_back(std::move(batches));
  }
  return it;
}

/// The calls of every rank: [num_ranks][num_calls].
inline std::vector<std::vector<cpu::CallInput>> inputs_of(Scenario& it) {
  std::vector<std::vector<cpu::CallInput>> inputs(static_cast<std::size_t>(it.problem.num_ranks));
  for (std::size_t call = 0; call < it.batches.size(); ++call) {
    for (std::size_t rank = 0; rank < inputs.size(); ++rank) {
      Batch& batch = it.batches[call][rank];
      inputs[rank].push_back({.x = batch.x_view(), .routing = batch.routing(), .y = batch.y_view(),
                              .max_tokens = it.max_tokens[call]});
    }
  }
  return inputs;
}

inline std::unique_ptr<cpu::Interleaver> make_group(const Scenario& it, const std::shared_ptr<DenseExperts>& experts) {
  return std::make_unique<cpu::Interleaver>(it.problem, it.geometry, experts, it.rosters, it.flush_after_idle_steps);
}

inline void poison_group(cpu::Interleaver& group) {
  poison_heap(group.heap());
  for (int rank = 0; rank < group.heap().layout().geometry.num_ranks; ++rank) poison_scratch(group.context(rank));
}

/// Every result of the scenario's calls equals the reference.
inline ::testing::AssertionResult all_exact(const Scenario& it, const ExpertSource& experts) {
  for (std::size_t call = 0; call < it.batches.size(); ++call) {
    for (std::size_t rank = 0; rank < it.batches[call].size(); ++rank) {
      const Batch& batch = it.batches[call][rank];
      if (batch.output(it.problem) != reference::layer(it.problem, experts, batch.x_view(), batch.routing())) {
        return ::testing::AssertionFailure() << "call " << call << " rank " << rank << " is wrong";
      }
    }
  }
  return ::testing::AssertionSuccess();
}

}  // namespace flashmoe::test
