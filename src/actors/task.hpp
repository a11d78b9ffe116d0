// What processors do: a task is a tile of work, or a few side by side. The rows of an up task are there when it is
// published, unless its m-block was cut early, which only engines do whose processors wait for them; a down task is published
// before its m-block's up tiles are stored, behind their tasks in the ring, and whoever takes it waits for them.
#pragma once

#include <cstdint>

#include "core/annotate.hpp"
#include "core/geometry.hpp"

namespace flashmoe {

enum class TaskKind : std::uint8_t {
  up,      ///< columns of the intermediate of one m-block
  down,    ///< columns of the results of one m-block, pushed to the tokens' ranks (or kept, pre_reduced)
  reduce,  ///< pre_reduced: the cells of some slots of one wave, pushed to the tokens' rank
  exit,    ///< the processor leaves
};

struct Task {
  TaskKind kind = TaskKind::exit;
  std::uint8_t num_tiles = 1;   ///< up, down: tiles from `tile` on
  std::uint8_t half = 0;        ///< up: 1 or 2: that half of the one tile; 0: all of it
  std::uint16_t wave_slot = 0;  ///< reduce: source * wave_ring + ring slot
  std::uint32_t index = 0;      ///< up, down: m-block of the ring
  std::uint32_t tile = 0;       ///< up, down: first column tile; reduce: group of kReduceSlots slots
};

/// Whether two neighbours of one batch are the same tiles of two m-blocks.
FLASHMOE_HD inline bool same_tiles(const Task& a, const Task& b) {
  const bool multiplies = a.kind == TaskKind::up || a.kind == TaskKind::down;
  return multiplies && a.tile == b.tile && a.num_tiles == b.num_tiles && a.half == b.half;
}

/// Whether they are one up or down task.
FLASHMOE_HD inline bool same_task(const Task& a, const Task& b) {
  return a.kind == b.kind && a.index == b.index && a.tile == b.tile && a.num_tiles == b.num_tiles && a.half == b.half;
}

/// Half tiles: what MBlock::up_done counts, as up tasks may be of halves.
FLASHMOE_HD inline std::uint32_t half_tiles(int num_tiles) { return 2 * static_cast<std::uint32_t>(num_tiles); }
FLASHMOE_HD inline std::uint32_t half_tiles(const Task& task) { return task.half != 0 ? 1 : half_tiles(task.num_tiles); }

/// Slots one reduce task covers.
inline constexpr int kReduceSlots = 8;

/// Rows [first_entry, first_entry + count) of one wave's route list for one expert.
struct alignas(16) Segment {
  std::uint32_t wave_slot = 0;    ///< source * wave_ring + ring slot
  std::uint32_t first_entry = 0;  ///< into the wave's route image
  std::uint32_t count = 0;
  std::uint32_t landed = 0;       ///< what Call::landed() of slot and expert has reached once they have landed
};

/// Up to tile.most_rows() rows of one expert, from any sources: the unit of the intermediate ring.
struct MBlock {
  static constexpr int kMaxSegments = 32;
  std::uint32_t local_expert = 0;
  std::uint32_t num_rows = 0;
  std::uint32_t num_segments = 0;
  std::uint32_t free = 1;        ///< 1 while the place is nobody's; published by the last holder
  std::uint32_t holders = 0;     ///< pre_reduced: its tasks together, and each wave that it completed until that is reduced
  std::uint32_t up_done = 0;     ///< halves of up tiles stored; the down tasks wait for all of them
  std::uint32_t down_done = 0;   ///< down tiles pushed
  std::uint32_t group_offset = 0;  ///< among m-blocks of one expert that were cut together, in ring order
  std::uint32_t group_size = 1;    ///< how many
  std::uint32_t tagged = 0;        ///< 1 where its intermediate is in tagged packets: no other m-block has its place in this call
  std::uint32_t cut_early = 0;     ///< 1 where rows may have been on their way when it was cut, and their list in the making
  Segment segments[kMaxSegments] = {};
};

/// Where row `row` of an m-block comes from.
struct RowOrigin {
  std::uint32_t wave_slot;
  std::uint32_t entry;
};

FLASHMOE_HD inline RowOrigin row_origin(const MBlock& block, std::uint32_t row) {
  std::uint32_t segment = 0;
  while (row >= block.segments[segment].count) row -= block.segments[segment++].count;
  return {block.segments[segment].wave_slot, block.segments[segment].first_entry + row};
}

}  // namespace flashmoe
