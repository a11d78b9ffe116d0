// Random groups for the Hopper kernel on the host, and the calls they make: everything drawn from one seed.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cuda/hopper/tile_shape.hpp"
#include "on_host/kernel_on_host.hpp"
#include "protocol/scenario.hpp"

namespace flashmoe::test {

struct KernelScenario : Scenario {
  on_host::Options options;

  std::string to_string() const {
    return fmt::format(
        "{}blocks {} pairs {} down tiles {}/{} early push {} early cut {} counts on device {} decode rows {}",
        Scenario::to_string(), options.num_blocks, options.pairs, options.down_tiles, options.halved_down_tiles,
        options.early_push, options.early_cut, options.counts_on_device, options.decode_rows);
  }
};

/// What every fourth group is for; the others are any.
enum class Kind { any, many_rows, lines, few_rows };

inline void draw_problem(KernelScenario& it, Kind kind, Dice& dice) {
  Problem& p = it.problem;
  p.num_ranks = kind == Kind::few_rows ? 1 : kind == Kind::any ? dice.pick({1, 2, 3, 7, 8}) : dice.pick({1, 2});
  p.num_experts = p.num_ranks * dice.between(1, kind == Kind::many_rows ? 2 : 5);
  p.top_k = std::min(dice.between(1, 4), p.num_experts);
  p.hidden = kind == Kind::lines ? 520 : dice.pick({8, 16, 128, 264});  // of 520 products have four tiles
  p.intermediate = dice.pick({8, 16, 72, 200});
  p.dtype = dice.pick({DType::bf16, DType::fp16});
  p.activation = dice.pick({Activation::silu, Activation::relu});
  p.gated = kind == Kind::few_rows || dice.one_in(2);
  p.up_bias = dice.one_in(4);
  p.down_bias = dice.one_in(4);
  p.weight_on_input = dice.one_in(5);
  p.wire_form = kind == Kind::lines || dice.one_in(3) ? WireForm::automatic : WireForm::counted;
  p.result_form = kind == Kind::any && dice.one_in(3) ? ResultForm::pre_reduced : ResultForm::per_route;
}

/// Rings and waves that the planner would never choose, but the kernel's own tile; up to three m-blocks an expert.
inline void draw_geometry(KernelScenario& it, Kind kind, Dice& dice) {
  Problem& p = it.problem;
  Geometry& g = it.geometry = small_geometry(p, dice);
  g.tile = cuda_backend::hopper::tile_shape(p.gated);
  g.wave_tokens = kind == Kind::any ? dice.pick({3, 16, 40, 80, 300}) : 300;
  g.listed_tokens = std::min(kind == Kind::few_rows ? 300 : dice.pick({0, 4, 100, 300}), g.wave_tokens);
  g.num_m_blocks = kind == Kind::any ? dice.pick({1, 3, 8, 40}) : 40;
  const int most_tokens = p.num_ranks > 3 ? 24 : p.num_ranks > 1 ? 100 : dice.pick({136, 300});
  p.max_tokens = g.max_tokens = std::min(3 * g.wave_tokens, most_tokens);
  g.lined_tokens = p.wire_form == WireForm::counted ? 0 : static_cast<int>(p.max_tokens) / dice.between(1, 2);
}

inline void draw_options(KernelScenario& it, Kind kind, Dice& dice) {
  on_host::Options& options = it.options;
  options.num_blocks = it.problem.num_ranks > 3 ? dice.between(3, 4) : dice.between(3, 8);
  options.pairs = kind == Kind::many_rows || (kind == Kind::any && dice.one_in(3));
  if (options.pairs) options.num_blocks += options.num_blocks % 2;
  if (kind == Kind::lines || dice.one_in(2)) {
    options.down_tiles = dice.pick({4, 8});
    options.halved_down_tiles = dice.pick({0, options.down_tiles / 2});
  }
  options.early_push = !dice.one_in(4);
  options.early_cut = kind == Kind::few_rows || !dice.one_in(4);
  options.counts_on_device = dice.one_in(3);
  options.decode_rows = kind == Kind::any ? dice.pick({0, 16, 96}) : 96;
  options.flush_after_idle_steps = dice.pick({1, 8, 100});
}

inline void draw_call(KernelScenario& it, Kind kind, std::uint64_t seed, Dice& dice) {
  const Problem& p = it.problem;
  const int lined_tokens = it.geometry.lined_tokens;
  const bool lined = lined_tokens > 0 && (kind == Kind::lines || dice.one_in(2));
  const std::int64_t max_tokens = lined ? dice.between(1, lined_tokens) : p.max_tokens;
  const bool few = kind == Kind::few_rows || dice.one_in(4);
  const auto routing = dice.pick(
      {Routing::distinct, Routing::any, Routing::any, Routing::all_to_one, Routing::last_rank, Routing::masked});
  std::vector<Batch> batches;
  for (int rank = 0; rank < p.num_ranks; ++rank) {
    const std::int64_t tokens = few                                         ? dice.between(1, 8)
                                : kind == Kind::many_rows && dice.one_in(2) ? max_tokens
                                                                            : draw_tokens(it, max_tokens, dice);
    batches.push_back(
        make_batch(p, std::min(tokens, max_tokens), seed * 64 + static_cast<std::uint64_t>(rank), routing));
  }
  it.max_tokens.push_back(max_tokens);
  it.batches.push_back(std::move(batches));
}

inline KernelScenario make_kernel_scenario(std::uint64_t seed, int num_calls) {
  Dice dice(seed);
  const auto kind = static_cast<Kind>(seed % 4);
  KernelScenario it;
  draw_problem(it, kind, dice);
  draw_geometry(it, kind, dice);
  draw_options(it, kind, dice);
  for (int call = 0; call < num_calls; ++call) draw_call(it, kind, seed * 64 + static_cast<std::uint64_t>(call), dice);
  return it;
}

}  // namespace flashmoe::test
