// M-blocks filled with an expert's rows: of each wave slot in turn, this rank's own first.
#pragma once

#include <cstdint>

#include "actors/call.hpp"
#include "actors/signal.hpp"
#include "actors/task.hpp"
#include "core/divide.hpp"

namespace flashmoe {

/// An expert's rows in a wave slot that are in no m-block yet.
struct PendingRows {
  std::uint32_t taken;        ///< before them, see Call::taken()
  std::uint32_t count;
  std::uint32_t first_entry;  ///< if there are any
};

/// Those that have landed. Where they are written down is looked up once, in wave slot 0, for all slots.
class RowsByCursors {
 public:
  /// `all_landed`: nothing lands any more, and who says so has been acquired.
  FLASHMOE_HD RowsByCursors(const Call& call, int expert, bool all_landed)
      : offset_(call.expert_offsets(0) + expert), base_(call.wave_base(0) + expert), landed_(call.landed(0) + expert),
        experts_(call.geometry().num_local_experts), all_landed_(all_landed) {}

  /// Wave slots to look at side by side: before all rows have landed each look has to acquire.
  FLASHMOE_HD int slots_at_once(int most) const { return all_landed_ ? most : 1; }

  /// `taken_so_far`: of slot and expert, see Call::taken().
  FLASHMOE_HD PendingRows of_slot(int slot, const std::uint32_t* taken_so_far) const {
    const int at = slot * experts_;
    const std::uint32_t taken = *taken_so_far;
    if (all_landed_) {
      const std::uint32_t first = offset_[at + slot] - base_[at];
      return {taken, peek(landed_ + at) - taken, first + taken};
    }
    const std::uint32_t count = observe<Scope::device>(landed_ + at) - taken;
    if (count == 0) return {taken, 0, 0};  // the slot's offsets may be in the making
    return {taken, count, offset_[at + slot] + taken - base_[at]};
  }

 private:
  const std::uint32_t* offset_;
  const std::uint32_t* base_;
  const std::uint32_t* landed_;
  int experts_;  ///< of a slot
  bool all_landed_;
};

/// Those that will have landed of a call in which each source has one wave, by counts of routes.
struct RowsByCounts {
  const std::uint32_t* counts;  ///< of the expert's routes from source 0; from every other one `stride` further
  const std::uint32_t* firsts;  ///< the same: the first of them in the source's list
  const int* slots;             ///< [num_ranks], the wave slot of each source's wave
  int stride;
  int slots_a_source;

  FLASHMOE_HD int slots_at_once(int most) const { return most; }
  FLASHMOE_HD PendingRows of_slot(int slot, const std::uint32_t* taken_so_far) const {
    const int source = slot / slots_a_source;
    const std::uint32_t count = slot == slots[source] ? counts[source * stride] : 0;
    return count > 0 ? PendingRows{*taken_so_far, count, firsts[source * stride]} : PendingRows{};
  }
};

/// Most m-blocks of one expert whose tasks alternate.
inline constexpr std::uint32_t kMostGrouped = 16;

/// M-blocks of all of an expert's `rows`, above 0.
FLASHMOE_HD inline std::uint32_t m_blocks_of(const TileShape& tile, std::uint32_t rows) {
  const auto full = static_cast<std::uint32_t>(tile.rows);
  const auto extra = static_cast<std::uint32_t>(tile.extra_rows);
  return rows <= full + extra ? 1 : (rows - extra + full - 1) / full;
}
/// Of at least tile.most_rows() rows: those before which there are a full one's and as many as the last may have beyond it.
FLASHMOE_HD inline std::uint32_t full_m_blocks_of(const TileShape& tile, std::uint32_t rows) {
  const auto full = static_cast<std::uint32_t>(tile.rows);
  const auto extra = static_cast<std::uint32_t>(tile.extra_rows);
  return rows <= full + extra ? 1 : (rows - extra) / full;
}

FLASHMOE_HD inline int up_tasks_of_m_block(const Call& call) {
  return ceil_divide_small(call.geometry().num_up_tiles(), call.plan.up_tiles);
}

/// Numbers of m-blocks, for one of them.
struct NarrowUps {
  std::uint32_t rows;       ///< its own
  std::uint32_t of_call;    ///< all that the call will have; 0: not known
  std::uint32_t cut;        ///< so far
  std::uint32_t from_here;  ///< the last ones of the call, from it on; 0: it is not known which those are
};

/// Whether a call of which nothing more will land ends sooner when the m-block's up tasks have one tile each. Where rows are few
/// it does if tiles are long; if the call has no more up tasks than processors, which would all end together, and all down tasks
/// wait for them; and where down tasks are long, if the last round of several would leave half of the processors idle and from
/// this m-block on there is no more than one.
FLASHMOE_HD inline bool narrow_ups_are_better(const Call& call, const NarrowUps& blocks) {
  if (blocks.rows > static_cast<std::uint32_t>(call.geometry().tile.narrow_rows)) return false;
  const auto tasks = static_cast<std::uint32_t>(up_tasks_of_m_block(call));
  const auto processors = static_cast<std::uint32_t>(call.roster.num_processors);
  if (call.plan.narrow_ups || (blocks.of_call > 0 && tasks * blocks.of_call <= processors)) return true;
  const std::uint32_t all = tasks * blocks.cut;
  const std::uint32_t in_last_round = (all - 1) % processors + 1;
  const bool ends = blocks.from_here > 0 && all > processors && tasks * blocks.from_here <= processors;
  return call.plan.narrow_ends && ends && 2 * in_last_round <= processors;
}

/// Whether the m-block's up tasks have half a tile each, in a call all of whose m-blocks are known: where all of them are no more
/// than processors even so, each of which reads only so fast; and of a call whose tiles are several rounds those of the last
/// m-blocks, as far as they are no more than processors, as these end sooner together. Not where processors take tasks in pairs:
/// the kernel for that spilled with half tiles.
FLASHMOE_HD inline bool halved_ups_are_better(const Call& call, const NarrowUps& blocks) {
  const auto tiles = static_cast<std::uint32_t>(call.geometry().num_up_tiles());
  const auto processors = static_cast<std::uint32_t>(call.roster.num_processors);
  const bool one_round = tiles * blocks.of_call <= processors;
  const std::uint32_t halved = one_round ? blocks.of_call : blocks.from_here;
  return blocks.rows <= static_cast<std::uint32_t>(call.geometry().tile.half_rows) && call.plan.tickets_at_once == 1 &&
         blocks.of_call > 0 && halved > 0 && half_tiles(static_cast<int>(tiles)) * halved <= processors;
}

/// Whether an m-block of `rows`, the only one of its expert in a call of `of_call`, has its intermediate in tagged packets, if no
/// other has its place: where up tasks are one round, all down tasks wait for the last of them.
FLASHMOE_HD inline bool tagged_rows_are_better(const Call& call, std::uint32_t rows, std::uint32_t of_call) {
  const std::uint32_t tiles = static_cast<std::uint32_t>(call.geometry().num_up_tiles()) * of_call;
  return rows <= static_cast<std::uint32_t>(call.geometry().tile.tagged_rows) &&
         tiles <= static_cast<std::uint32_t>(call.roster.num_processors);
}

/// How the up tasks of an expert's m-blocks are cut.
FLASHMOE_HD inline void choose_ups(const Call& call, const NarrowUps& blocks, TaskBatch& ups) {
  ups.halved = halved_ups_are_better(call, blocks);
  ups.narrow = ups.halved || narrow_ups_are_better(call, blocks);
}

/// Whether the up tasks of m-block `index` of `cut`, all that a call has, are narrow so that processors, which begin together, get
/// out of step: with tasks of one length they would end their tiles together, and no weights would come meanwhile. It is every
/// other m-block of the first round of several, where a round has many: of long tasks the mixture costs more than it brings.
FLASHMOE_HD inline bool begins_out_of_step(const Call& call, std::uint32_t rows, std::uint32_t index, std::uint32_t cut) {
  constexpr std::uint32_t kFewestInRound = 16;
  const auto tasks = static_cast<std::uint32_t>(up_tasks_of_m_block(call));
  const auto processors = static_cast<std::uint32_t>(call.roster.num_processors);
  return rows <= static_cast<std::uint32_t>(call.geometry().tile.narrow_rows) && index % 2 == 0 && index * tasks < processors &&
         cut * tasks >= 2 * processors && kFewestInRound * tasks <= processors;
}

FLASHMOE_HD inline std::uint64_t down_tasks_of_m_block(const Call& call) {
  return static_cast<std::uint64_t>(ceil_divide_small(call.geometry().num_down_tiles(), call.plan.down_tiles));
}

/// Numbers of a call's m-blocks, all of which are known, for the down tasks of some of them.
struct LastDowns {
  std::uint64_t first;    ///< m-blocks before them
  std::uint64_t cut;      ///< all
  std::uint64_t retired;  ///< finished
};

/// Whether the call ends sooner when down tasks have one tile each: where all of it would leave half of the processors idle; and
/// where tasks are long, if those under way do, in their only round or in the second, and after two rounds, which end at any time.
FLASHMOE_HD inline bool narrow_downs_are_better(const Call& call, const LastDowns& blocks) {
  const std::uint64_t tasks = down_tasks_of_m_block(call);
  const auto processors = static_cast<std::uint64_t>(call.roster.num_processors);
  if (2 * tasks * blocks.cut <= processors) return true;
  if (!call.plan.narrow_ends) return false;
  const std::uint64_t under_way = tasks * (blocks.cut - blocks.retired);
  const bool leaves_half_idle = 2 * under_way <= processors || (under_way > processors && 2 * under_way <= 3 * processors);
  return 4 * tasks * (blocks.cut - blocks.first) <= 3 * processors && (leaves_half_idle || under_way > 2 * processors);
}

/// Whether they have half as many products, as the call's last two rounds do where tasks have several: the shorter the last ones,
/// the less processors wait for one another.
FLASHMOE_HD inline bool halved_downs_are_better(const Call& call, const LastDowns& blocks) {
  return call.plan.halved_down_tiles > 0 &&
         down_tasks_of_m_block(call) * (blocks.cut - blocks.first) <= 2 * static_cast<std::uint64_t>(call.roster.num_processors);
}

/// How the down tasks of m-blocks are cut.
FLASHMOE_HD inline void choose_downs(const Call& call, const LastDowns& blocks, TaskBatch& downs) {
  downs.narrow = narrow_downs_are_better(call, blocks);
  downs.halved = !downs.narrow && halved_downs_are_better(call, blocks);
}

/// M-blocks of one expert, cut together.
struct ExpertCut {
  int expert;
  std::uint32_t first_place;  ///< of the intermediate ring
  std::uint32_t count;        ///< of m-blocks
  std::uint32_t rows;         ///< that the expert has in no m-block
  bool rehearsing;            ///< `count` is 0, all slots are looked at
  bool early;                 ///< see MBlock::cut_early
  bool tagged = false;        ///< see MBlock::tagged
};

/// Fills them; returns how many rows they took. One thread. What it reads of the call it reads once: it stores in between.
template <class Rows>
FLASHMOE_HD std::uint32_t fill_m_blocks(const Call& call, const ExpertCut& cut, const Rows& expert_rows) {
  constexpr int kSlots = 4;  // most that are looked at side by side
  const auto tile_rows = static_cast<std::uint32_t>(call.geometry().tile.rows);
  const auto most_rows = static_cast<std::uint32_t>(call.geometry().tile.most_rows());
  const auto places = static_cast<std::uint32_t>(call.geometry().num_m_blocks);
  const int num_slots = call.num_wave_slots();
  const int apart = call.slots_apart();
  const int at_once = expert_rows.slots_at_once(kSlots);
  const int experts = call.geometry().num_local_experts;
  std::uint32_t* const taken = call.taken(0) + cut.expert;
  MBlock* const blocks = &call.m_block(0);
  std::uint32_t place = cut.first_place;
  std::uint32_t filled = 0;
  std::uint32_t rows = 0;
  std::uint32_t segments = 0;
  std::uint32_t taken_rows = 0;
  const auto room_of_next = [&] { return cut.rows - taken_rows <= most_rows ? most_rows : tile_rows; };
  std::uint32_t room = room_of_next();
  const auto close = [&] {
    MBlock& block = blocks[place];
    block.local_expert = static_cast<std::uint32_t>(cut.expert);
    block.num_rows = rows;
    block.num_segments = segments;
    block.free = 0;
    block.holders = 1;
    block.up_done = 0;
    block.down_done = 0;
    block.group_offset = filled++;
    block.group_size = cut.count;
    block.cut_early = cut.early ? 1 : 0;
    block.tagged = cut.tagged ? 1 : 0;
    place = place + 1 < places ? place + 1 : 0;
    taken_rows += rows;
    rows = segments = 0;
    room = room_of_next();
  };
  int slot = call.rank * call.geometry().wave_ring;
  for (int seen = 0; seen < num_slots && (filled < cut.count || cut.rehearsing); seen += at_once * apart) {
    int slots[kSlots];
    PendingRows pending[kSlots];
    FLASHMOE_UNROLL
    for (int i = 0; i < kSlots; ++i) {
      slots[i] = slot;
      pending[i] = PendingRows{};
      if (i >= at_once || seen + i * apart >= num_slots) continue;
      pending[i] = expert_rows.of_slot(slot, taken + slot * experts);
      slot = slot + apart < num_slots ? slot + apart : 0;
    }
    FLASHMOE_ROLLED
    for (int i = 0; i < at_once && filled < cut.count; ++i) {
      std::uint32_t available = pending[0].count;
      std::uint32_t entry = pending[0].first_entry;
      const std::uint32_t end = pending[0].taken + pending[0].count;
      while (available > 0 && filled < cut.count) {
        const std::uint32_t some = available < room ? available : room;
        rows += some;
        available -= some;
        room -= some;
        blocks[place].segments[segments++] = {static_cast<std::uint32_t>(slots[0]), entry, some, end - available};
        entry += some;
        if (room == 0 || segments == static_cast<std::uint32_t>(MBlock::kMaxSegments)) close();
      }
      if (pending[0].count > 0) taken[slots[0] * experts] = end - available;
      FLASHMOE_UNROLL
      for (int next = 1; next < kSlots; ++next) {  // to the front: registers have no index
        slots[next - 1] = slots[next];
        pending[next - 1] = pending[next];
      }
    }
  }
  if (rows > 0) close();
  return taken_rows;
}

}  // namespace flashmoe
