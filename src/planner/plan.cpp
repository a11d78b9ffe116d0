#include "planner/plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/counter_rng.hpp"
#include "core/heap_layout.hpp"
#include "flashmoe/error.hpp"

namespace flashmoe {

namespace {

/// Slots and tokens a counter covers. Smaller blocks overlap more and signal more (probes: 64 wins at 1024 tokens).
constexpr int kSlotBlock = 64;
constexpr int kTokenBlock = 64;

/// Most tokens of a call in lined form, and most bytes of results that its tokens get back: beyond, lines cost more than
/// fences. 2 H200s, Hopper engine, lined against counted: qwen3-30b-a3b, 32 tokens 220 and 231 us, 64 tokens 242 and 237;
/// mixtral-8x7b 433 and 440, 458 and 444; llama4-scout 554 and 558, 573 and 559; at 128 tokens counted leads by 7 to 16 %
/// (one run, not recorded).
constexpr std::int64_t kLinedTokens = 32;
constexpr std::int64_t kLinedResultBytes = std::int64_t{2} << 20;

/// Rows of one expert a wave should bring: its last m-block is cut short, and its weights are read again each wave. One
/// H100, 32 experts of qwen3-30b-a3b, 8,192 tokens: 512 rows 1,847 us, 1,024 rows 1,438 us, 2,048 rows 1,457 us.
constexpr std::int64_t kWaveRowsPerExpert = 1024;
/// Twice as many for wide experts, whose down tiles are long: m-blocks of one expert that run side by side share what they
/// read, if there are many of them. mixtral-8x7b, 8,192 tokens, likewise: 512 rows 13,692 us, 1,024 rows 11,614 us, 2,048
/// rows 10,517 us.
constexpr int kWideIntermediate = 8192;
/// Tokens of a wave are planned down until the heap fits this.
constexpr std::size_t kHeapBudgetBytes = std::size_t{1536} << 20;
/// And the local scratch of pre_reduced results this.
constexpr std::int64_t kPartialBudgetBytes = std::int64_t{1} << 30;

/// Time on the wire that is worth a rounding of every rank's sum.
constexpr double kWorthPreReducingUs = 20;

bool pre_reducing_wins(const WireEstimate& estimate) {
  return estimate.per_route_us > estimate.ffn_us && estimate.per_route_us - estimate.pre_reduced_us > kWorthPreReducingUs;
}

bool may_pre_reduce(const Problem& problem) {
  if (problem.result_form == ResultForm::pre_reduced) return true;
  if (problem.result_form == ResultForm::per_route || problem.batch_invariant) return false;
  if (problem.wire_form == WireForm::lined) return false;
  return pre_reducing_wins(estimate_wire(problem, problem.max_tokens));
}

std::int64_t default_wave_tokens(const Problem& problem) {
  const std::int64_t rows = problem.intermediate >= kWideIntermediate ? 2 * kWaveRowsPerExpert : kWaveRowsPerExpert;
  const std::int64_t wanted =
      ceil_div(rows * problem.num_experts, std::int64_t{problem.top_k} * problem.num_ranks);
  const std::int64_t rounded = ceil_div(std::max<std::int64_t>(wanted, kTokenBlock), kTokenBlock) * kTokenBlock;
  return std::min({rounded, problem.max_tokens, Limits::wave_tokens / kTokenBlock * kTokenBlock});
}

std::int64_t partial_bytes(const Geometry& g) {
  if (!g.pre_reduced) return 0;
  return std::int64_t{g.num_ranks} * g.wave_ring * g.slot_tokens() * g.top_k * g.hidden * (g.element_bytes == 8 ? 8 : 4);
}

}  // namespace

WireEstimate estimate_wire(const Problem& problem, std::int64_t tokens_per_rank) {
  if (problem.num_ranks == 1) return {};
  const MachineRates rates;
  const double ranks = problem.num_ranks;
  const double row_bytes = static_cast<double>(problem.hidden) * static_cast<double>(dtype_bytes(problem.dtype));
  const double tokens = static_cast<double>(tokens_per_rank);
  const double routes_out = problem.top_k * (ranks - 1) / ranks;
  const double peers_out = (ranks - 1) * (1.0 - std::pow(1.0 - 1.0 / ranks, problem.top_k));
  const double matrices = problem.gated ? 3.0 : 2.0;
  const double expert_elements = matrices * problem.hidden * problem.intermediate;
  const double flops = tokens * problem.top_k * 2.0 * expert_elements;
  const double weight_bytes =
      problem.num_local_experts() * expert_elements * static_cast<double>(dtype_bytes(problem.dtype));
  return {.per_route_us = tokens * row_bytes * (peers_out + routes_out) / rates.wire_bytes_per_us,
          .pre_reduced_us = tokens * row_bytes * 2.0 * peers_out / rates.wire_bytes_per_us,
          .ffn_us = std::max(flops / rates.flops_per_us, weight_bytes / rates.memory_bytes_per_us)};
}

Geometry plan_geometry(const Problem& problem, const EngineTraits& engine) {
  Geometry g;
  g.num_ranks = problem.num_ranks;
  g.num_local_experts = problem.num_local_experts();
  g.hidden = problem.hidden;
  g.intermediate = problem.intermediate;
  g.top_k = problem.top_k;
  g.element_bytes = static_cast<int>(dtype_bytes(problem.dtype));
  g.max_tokens = problem.max_tokens;
  g.slot_block = kSlotBlock;
  g.token_block = kTokenBlock;
  g.tile = engine.tile;
  g.num_m_blocks = engine.num_m_blocks;
  g.pre_reduced = may_pre_reduce(problem);
  g.list_weights = g.pre_reduced || problem.weight_on_input;
  g.num_result_cells = g.pre_reduced ? std::max(problem.top_k, problem.num_ranks) : problem.top_k;
  g.wave_ring = problem.wave_ring > 0 ? problem.wave_ring : 2;

  if (problem.wire_form != WireForm::counted && problem.result_form != ResultForm::pre_reduced) {
    const std::int64_t most = problem.wire_form == WireForm::lined
                                  ? Limits::lined_tokens
                                  : std::min(kLinedTokens, kLinedResultBytes / (g.row_bytes() * g.top_k));
    g.lined_tokens = static_cast<int>(std::min(problem.max_tokens, most));
  }

  std::int64_t wave_tokens = problem.wave_tokens > 0 ? std::min(problem.wave_tokens, problem.max_tokens)
                                                     : default_wave_tokens(problem);
  g.wave_tokens = static_cast<int>(wave_tokens);
  while (problem.wave_tokens == 0 && wave_tokens > kTokenBlock &&
         (make_heap_layout(g).total_bytes > kHeapBudgetBytes || partial_bytes(g) > kPartialBudgetBytes)) {
    wave_tokens = ceil_div(wave_tokens / 2, kTokenBlock) * kTokenBlock;
    g.wave_tokens = static_cast<int>(wave_tokens);
  }
  g.listed_tokens = std::min(engine.listed_routes / problem.top_k, g.wave_tokens);
  return g;
}

namespace {

/// Rows of an expert, if routing is even.
std::int64_t rows_of_expert(const Geometry& g, std::int64_t max_tokens) { return max_tokens * g.top_k / g.num_local_experts; }

/// Products over `k` that a task takes together, of `products` an m-block has. Short tasks cost more to hand out than they
/// compute; long ones leave processors without work where there are few. Where experts have less than a full m-block there are
/// few tasks, and what they wait for is weights: half as long is long enough. `fewest_tasks` are left, if there are as many.
int products_of_task(const Geometry& g, std::int64_t max_tokens, int k, int products, std::int64_t fewest_tasks) {
  constexpr std::int64_t kFewestTasks = 1024;
  const std::int64_t routes = max_tokens * g.top_k;  // to a rank, if routing is even
  const std::int64_t full_blocks = rows_of_expert(g, max_tokens) / g.tile.rows;
  const std::int64_t m_blocks = std::min(std::max<std::int64_t>(full_blocks, 1) * g.num_local_experts, routes);
  const int elements = full_blocks > 0 ? g.tile.task_elements : g.tile.task_elements / 2;
  const auto longest = std::clamp<std::int64_t>(m_blocks * products / fewest_tasks, 1, kMostTilesOfTask);
  const int wanted = std::clamp(elements / k, 1, std::min(products, static_cast<int>(longest)));
  return m_blocks * products < kFewestTasks ? 1 : wanted;
}

}  // namespace

CallPlan plan_call(const Problem& problem, const Geometry& geometry, std::int64_t max_tokens) {
  if (max_tokens < 0 || max_tokens > geometry.max_tokens) {
    throw InvalidArgument(fmt::format("max_tokens of the call ({}) must be in 0..{}, the layer's max_tokens: build the "
                                      "layer with a larger one",
                                      max_tokens, geometry.max_tokens));
  }
  CallPlan plan;
  plan.max_tokens = max_tokens;
  const bool lined_fits = geometry.lined_tokens > 0 && max_tokens <= geometry.lined_tokens;
  plan.wire_form = lined_fits ? WireForm::lined : WireForm::counted;
  if (plan.wire_form == WireForm::counted && geometry.pre_reduced) {
    const WireEstimate estimate = estimate_wire(problem, max_tokens);
    if (problem.result_form == ResultForm::pre_reduced || pre_reducing_wins(estimate)) plan.result_form = ResultForm::pre_reduced;
  }
  plan.list_weights = problem.weight_on_input || plan.result_form == ResultForm::pre_reduced;
  const auto tiles_of_task = [&](int at_once, int k, int num_tiles) {
    constexpr std::int64_t kFewestOfLined = 256;
    const std::int64_t fewest_tasks = plan.wire_form == WireForm::lined ? kFewestOfLined : 1;
    return at_once * products_of_task(geometry, max_tokens, k, ceil_div(num_tiles, at_once), fewest_tasks);
  };
  const TileShape& tile = geometry.tile;
  plan.up_tiles = tiles_of_task(tile.up_tiles_at_once, geometry.hidden, geometry.num_up_tiles());
  plan.down_tiles = tiles_of_task(tile.down_tiles_at_once, geometry.intermediate, geometry.num_down_tiles());
  const int products = plan.down_tiles / tile.down_tiles_at_once;
  const bool halves = products > 1 && 2 * rows_of_expert(geometry, max_tokens) >= tile.rows;  // else they are short as it is
  plan.halved_down_tiles = halves ? ceil_div(products, 2) * tile.down_tiles_at_once : 0;
  const std::int64_t routes = max_tokens * geometry.num_ranks * geometry.top_k;  // if all ranks bring as many
  if (routes >= std::int64_t{tile.pair_rows} * geometry.num_experts()) plan.tickets_at_once = 2;
  const auto is_long = [&](int at_once, int k) { return at_once > 1 && k >= at_once * tile.task_elements; };
  plan.narrow_ups = is_long(tile.up_tiles_at_once, geometry.hidden);
  plan.narrow_ends = is_long(tile.down_tiles_at_once, geometry.intermediate);
  return plan;
}

std::uint64_t plan_hash(const Geometry& g, const CallPlan& plan) {
  std::uint64_t state = 0;
  for (const std::int64_t field :
       {std::int64_t{g.num_ranks}, std::int64_t{g.num_local_experts}, std::int64_t{g.hidden},
        std::int64_t{g.intermediate}, std::int64_t{g.top_k}, std::int64_t{g.element_bytes}, g.max_tokens,
        std::int64_t{g.wave_tokens}, std::int64_t{g.wave_ring}, std::int64_t{g.lined_tokens},
        std::int64_t{g.listed_tokens},
        std::int64_t{g.slot_block}, std::int64_t{g.token_block}, std::int64_t{g.num_result_cells},
        std::int64_t{g.tile.down_columns}, static_cast<std::int64_t>(plan.wire_form),
        static_cast<std::int64_t>(plan.result_form), static_cast<std::int64_t>(plan.list_weights),
        plan.max_tokens}) {
    state = mix64(state * 0x9e3779b97f4a7c15ull + static_cast<std::uint64_t>(field) + 1);
  }
  return state;
}

std::string explain_plan(const Problem& problem, const Geometry& g, const CallPlan& plan) {
  std::string text;
  if (plan.wire_form == WireForm::lined) {
    const bool asked_for = problem.wire_form == WireForm::lined;
    text += fmt::format("wire form lined: at most {} tokens a rank, {}", g.lined_tokens,
                        asked_for ? "as asked for" : "where lines without fences are fastest");
  } else {
    const std::int64_t waves = num_waves(g, g.max_tokens);
    text += fmt::format("wire form counted: rows and counters, {} wave{} of up to {} tokens, {} in flight a source",
                        waves, waves == 1 ? "" : "s", g.wave_tokens, g.wave_ring);
    if (plan.result_form == ResultForm::per_route && g.listed_tokens > 0) {
      text += fmt::format("; a rank with up to {} tokens sends ids, from which receivers make their lists", g.listed_tokens);
    }
  }
  const WireEstimate estimate = estimate_wire(problem, g.max_tokens);
  if (plan.result_form == ResultForm::pre_reduced) {
    text += fmt::format("; results pre_reduced: one row per (token, expert rank) crosses, {:.0f} us of wire instead of "
                        "{:.0f} beside {:.0f} us of expert work (H100 estimate)",
                        estimate.pre_reduced_us, estimate.per_route_us, estimate.ffn_us);
  } else {
    text += "; results per_route: one row per route, independent of the rank count";
  }
  text += fmt::format("; tiles of {} rows{} x {} up / {} down columns", g.tile.rows,
                      g.tile.extra_rows > 0 ? fmt::format(" (an expert's last up to {})", g.tile.most_rows()) : "",
                      g.tile.up_columns, g.tile.down_columns);
  if (plan.up_tiles > 1 || plan.down_tiles > 1) {
    text += fmt::format(", {} / {} a task{}{}{}", plan.up_tiles, plan.down_tiles,
                        plan.narrow_ups ? fmt::format(" (1 up where there are at most {} rows)", g.tile.narrow_rows) : "",
                        plan.halved_down_tiles > 0 ? fmt::format(" ({} down where the call ends)", plan.halved_down_tiles) : "",
                        plan.narrow_ends ? " (1 where the call ends)" : "");
  }
  if (plan.tickets_at_once == 2) {
    text += fmt::format("; tasks in pairs that share weights, if a rank's blocks are even in number: experts have {} rows or more "
                        "on average", g.tile.pair_rows);
  }
  return text;
}

}  // namespace flashmoe
