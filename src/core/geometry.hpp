// The sizes that shape memory and waves, as the planner fixes them when a layer is created. Equal on all ranks.
#pragma once

#include <cstdint>
#include <limits>

#include "core/annotate.hpp"
#include "core/divide.hpp"
#include "flashmoe/problem.hpp"

namespace flashmoe {

/// Tiles that processors compute.
struct TileShape {
  int rows = 0;          ///< token rows of an m-block
  int up_columns = 0;    ///< columns of the intermediate an up tile has (gate and up of each, when gated)
  int down_columns = 0;  ///< columns of the result a down tile has
  /// Tiles that the engine multiplies fastest: a task has so many, or a multiple.
  int up_tiles_at_once = 1, down_tiles_at_once = 1;
  int task_elements = 0;  ///< of k that make a task worth what it takes to hand it out; fewer: a task of several tiles
  /// Rows that experts have on average from which on processors take tasks in pairs, which share weights; by default never.
  int pair_rows = std::numeric_limits<int>::max();
  /// Most rows of an m-block whose up tasks may have one tile: with more they would take longer than half of two.
  int narrow_rows = std::numeric_limits<int>::max();
  /// Most rows of an m-block whose up tasks may have half a tile; 0: none ever.
  int half_rows = 0;
  /// Most rows of an m-block whose intermediate may be in tagged packets (core/line.hpp); 0: none ever.
  int tagged_rows = 0;
  int extra_rows = 0;  ///< that the last m-block of an expert may have beyond `rows`, instead of one more m-block

  FLASHMOE_HD constexpr int most_rows() const { return rows + extra_rows; }
  bool operator==(const TileShape&) const = default;
};

struct Geometry {
  int num_ranks = 0;
  int num_local_experts = 0;
  int hidden = 0;
  int intermediate = 0;
  int top_k = 0;
  int element_bytes = 0;
  std::int64_t max_tokens = 0;   ///< of one rank and call
  int wave_tokens = 0;           ///< most tokens of a wave (counted form)
  int wave_ring = 0;             ///< waves in flight per source
  int lined_tokens = 0;          ///< most tokens of a call in lined form; 0: the lined form is never used
  /// Most tokens of a rank that are listed from their ids (Call::listed_from_ids); at most wave_tokens. 0: none ever.
  int listed_tokens = 0;
  int slot_block = 0;            ///< slots an arrival counter covers
  int token_block = 0;           ///< tokens a result counter covers
  int num_result_cells = 0;      ///< cells of a token: top_k, or max(top_k, num_ranks) where pre_reduced may run
  bool list_weights = false;     ///< room for the routing weight in route lists
  bool pre_reduced = false;      ///< pre_reduced results may run, so their local scratch exists
  TileShape tile;
  int num_m_blocks = 0;          ///< m-blocks of the local intermediate ring

  bool operator==(const Geometry&) const = default;

  FLASHMOE_HD constexpr int num_experts() const { return num_ranks * num_local_experts; }
  FLASHMOE_HD constexpr std::int64_t row_bytes() const { return std::int64_t{hidden} * element_bytes; }
  FLASHMOE_HD constexpr std::int64_t row_words() const { return row_bytes() / 8; }
  FLASHMOE_HD constexpr int num_slot_blocks() const { return ceil_divide_small(wave_tokens, slot_block); }
  FLASHMOE_HD constexpr int num_token_blocks() const { return ceil_divide_small(wave_tokens, token_block); }
  FLASHMOE_HD constexpr int num_up_tiles() const { return ceil_divide_small(intermediate, tile.up_columns); }
  FLASHMOE_HD constexpr int num_down_tiles() const { return ceil_divide_small(hidden, tile.down_columns); }
  /// Tokens a local wave slot can hold in either form.
  FLASHMOE_HD constexpr int slot_tokens() const { return wave_tokens > lined_tokens ? wave_tokens : lined_tokens; }
  /// Most tokens of a rank whose ids are sent.
  FLASHMOE_HD constexpr int id_tokens() const { return listed_tokens > lined_tokens ? listed_tokens : lined_tokens; }
};

/// Forms of one call, a pure function of (Geometry, max_tokens of the call); every rank computes the same.
struct CallPlan {
  WireForm wire_form = WireForm::counted;
  ResultForm result_form = ResultForm::per_route;
  bool list_weights = false;  ///< route lists of this call carry the routing weight
  std::int64_t max_tokens = 0;  ///< most tokens a rank brings
  int up_tiles = 1;           ///< of an up task
  int down_tiles = 1;         ///< of a down task
  int halved_down_tiles = 0;  ///< of one of the call's last, see halved_downs_are_better(); 0: these are as long as others
  /// The last tasks of the call are of one tile, so that processors end together. All are, whatever this says, where there are few
  /// for the processors: see narrow_ups_are_better() and narrow_downs_are_better().
  bool narrow_ends = false;
  /// Up tasks of m-blocks of TileShape::narrow_rows or fewer have one tile: it has k enough for a task, and the sooner one ends,
  /// the sooner down tasks begin.
  bool narrow_ups = false;
  int tickets_at_once = 1;    ///< of a claim: 2 where processors take tasks in pairs
  bool operator==(const CallPlan&) const = default;
};

/// Waves that `num_tokens` tokens of one rank take in counted form.
FLASHMOE_HD constexpr std::int64_t num_waves(const Geometry& geometry, std::int64_t num_tokens) {
  return (num_tokens + geometry.wave_tokens - 1) / geometry.wave_tokens;
}

}  // namespace flashmoe
