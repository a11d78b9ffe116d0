// Scheduler: cuts m-blocks from landed rows, grants them a place in the intermediate ring, and publishes their up
// tasks, then their down tasks some way behind: processors that take those early wait for the up tiles. One a rank.
//
// An m-block is cut when an expert has the landed rows of a full tile and as many as its last m-block may have beyond one;
// that last one when no source can add to it soon: all rows of its wave have landed everywhere, or nothing else is left to
// do while a source is late. So a late rank delays its own rows only, and no processor waits while landed rows exist.
// Nothing is cut long before processors need it, least of all while rows land: the later, the more rows of an expert have
// landed, whose m-blocks then share the expert's weights.
//
// Of a call with few tokens (Call::listed_from_ids) it is known how many rows every expert will have as soon as all ids are there.
// An engine may have threads that cut all m-blocks then (CutState) and publish their tasks; its processors wait for the rows.
#pragma once

#include <cstdint>

#include "actors/call.hpp"
#include "actors/m_blocks.hpp"
#include "actors/pending_rows.hpp"
#include "actors/signal.hpp"
#include "actors/step.hpp"

namespace flashmoe {

/// Of m-blocks that other threads of an engine may cut in the scheduler's place; left: they will not.
enum class CutState : std::uint8_t { awaited, made, left };

template <class Group>
class Scheduler {
 public:
  FLASHMOE_HD explicit Scheduler(const Call& call)
      : call_(call), lag_(lag_of(call)), enough_early_(enough_early(call)), most_cut_(most_cut(call)),
        published_(call.task_ring().first()), num_free_(static_cast<std::uint32_t>(call.geometry().num_m_blocks)) {}

  FLASHMOE_HD Step step(const Group& group) {
    if (finished_) return Step::finished;
    if constexpr (kHasHelp) {
      if (awaits_cut_) return await_cut(group);
    }
    if (publish_downs(group, lag_)) return Step::advanced;
    const Step step = look_for_work(group);
    // Down tasks before their time: there is nothing to put between.
    const bool held_back = step == Step::idle && num_downs_ < num_cut_;
    const bool now = held_back && (nothing_to_cut() || few(unclaimed(group)));
    return now && publish_downs(group, 0) ? Step::advanced : step;
  }

  FLASHMOE_HD const Wait& wait() const { return wait_; }

 private:
  FLASHMOE_HD const Geometry& geometry() const { return call_.geometry(); }

  /// Whether the engine has threads that may cut: group.cut_state(), and group.refuse_cut(), false when they have begun, or may
  /// not be refused.
  static constexpr bool kHasHelp = requires(const Group& group) { group.cut_state(); };

  /// Until all m-blocks of the call are cut, or will not be. A rank that is late is waited for as long as before a flush, in steps
  /// that take as long.
  FLASHMOE_HD Step await_cut(const Group& group) {
    const CutState state = group.cut_state();
    group.sync();
    if (state == CutState::awaited) {
      read_progress(group);
      if (++idle_steps_ < call_.flush_after_idle_steps || !group.refuse_cut()) {
        return waiting(SignalKind::landed, num_cut_, retired_);
      }
      start_pass(true);
    }
    if (state == CutState::made) adopt(group.num_cut());
    idle_steps_ = 0;
    awaits_cut_ = false;
    return Step::advanced;
  }

  /// `count` m-blocks have been cut, all that the call has, and their tasks published.
  FLASHMOE_HD void adopt(std::uint32_t count) {
    num_cut_ = num_downs_ = count;
    num_free_ -= count;
    closed_ = kAllWavesClosed;
    published_ = call_.task_ring().latest();
    end_pass();
  }

  FLASHMOE_HD Step look_for_work(const Group& group) {
    // What comes during a pass makes the next one, but for what is looked at again; after the pass that found all waves closed
    // nothing comes.
    if (!cutting_ && !nothing_will_land()) read_progress(group);
    if (cutting_) return cut_next(group);
    if (num_downs_ == num_cut_ && no_more_tasks()) return publish_exits(group);
    return flush_if_starved();
  }

  FLASHMOE_HD bool nothing_will_land() const { return closed_ == kAllWavesClosed; }
  FLASHMOE_HD bool nothing_to_cut() const { return !cutting_ && nothing_will_land(); }

  /// Tasks that no processor has taken.
  FLASHMOE_HD int unclaimed(const Group& group) const { return group.broadcast(leaders_unclaimed(group)); }
  FLASHMOE_HD int leaders_unclaimed(const Group& group) const { return group.leader() ? call_.task_ring().unclaimed() : 0; }

  /// Whether `ahead` tasks that none has taken, and the up tasks of `blocks` m-blocks more, are enough for now.
  FLASHMOE_HD bool enough_with(int ahead, std::uint32_t blocks) const {
    const int processors = call_.roster.num_processors;
    if (nothing_will_land()) return ahead >= kEnough * processors;
    return ahead + static_cast<int>(blocks) * up_tasks() >= enough_early_ * processors;
  }

  FLASHMOE_HD int up_tasks() const { return up_tasks_of_m_block(call_); }

  /// Whether they are so few that processors may run out: then part of a group, or down tasks before their time, are better
  /// than nothing. Less than a task each; half of it where no more than one is kept ahead.
  FLASHMOE_HD bool few(int ahead) const {
    const bool one_ahead = !nothing_will_land() && enough_early_ == 1;
    return (one_ahead ? 2 * ahead : ahead) < call_.roster.num_processors;
  }

  /// Where pre_reduced results run, completions publish reduce tasks, too.
  FLASHMOE_HD TaskCursor* sole() { return call_.pre_reduced() ? nullptr : &published_; }

  FLASHMOE_HD Step waiting(SignalKind signal, std::uint64_t expected, std::uint64_t seen) {
    wait_ = {signal, call_.rank, expected, seen};
    return Step::idle;
  }

  /// New rows or newly closed waves start a pass over the experts. `closed` is read before the rows it speaks of.
  FLASHMOE_HD void read_progress(const Group& group) {
    retired_ = peek(&call_.counters().retired_blocks);  // on its way beside the rest
    std::uint32_t closed = kAllWavesClosed;
    std::uint32_t version = 0;  // of all sources together
    for (int source = group.index(); source < geometry().num_ranks; source += group.size()) {
      const auto told = SourceProgress::of(observe<Scope::device>(&call_.counters().progress[source]));
      closed = closed < told.closed_waves ? closed : told.closed_waves;
      version += told.version;
    }
    closed = group.least(closed);
    version = group.sum(version);
    group.sync();
    if (version != seen_version_) looked_ = false;
    seen_version_ = version;
    if (cutting_ && closed != kAllWavesClosed) return;  // a pass ends before the next, but for the last
    if (closed != closed_) {
      closed_ = closed;
      start_pass(true);
    } else if (version != version_) {
      start_pass(false);
    }
    version_ = version;
  }

  FLASHMOE_HD void start_pass(bool flushing) {
    cutting_ = true;
    flushing_ = flushing;
    rehearsing_ = false;  // all waves may have closed while others were to cut
    first_expert_ = 0;
    looked_ = false;
    idle_steps_ = 0;
  }

  FLASHMOE_HD void end_pass() {
    cutting_ = false;
    flushing_ = false;
    rehearsing_ = false;
  }

  /// Gives each thread the next expert that has m-blocks to be cut, from first_expert_ on, as far as there are such.
  FLASHMOE_HD void look(const Group& group) {
    looked_ = true;
    my_pending_ = 0;
    std::uint32_t count = 0;
    next_expert_ = first_expert_;
    knows_all_ = false;
    num_left_ = 0;
    while (count < static_cast<std::uint32_t>(group.size()) && next_expert_ < geometry().num_local_experts) {
      if (call_.lined()) {
        look_at<4>(group, count);  // few tokens leave many experts without rows
      } else {
        look_at<1>(group, count);
      }
    }
    if (!rehearsing_) return;
    my_expert_ = group.index();
    my_pending_ = 0;
  }

  /// Goes on with `kExperts` experts a thread: `count` threads have theirs.
  template <int kExperts>
  FLASHMOE_HD void look_at(const Group& group, std::uint32_t& count) {
    const auto index = static_cast<std::uint32_t>(group.index());
    std::uint32_t pending[kExperts];
    read_pending(group, call_, next_expert_ + group.index(), pending);
    FLASHMOE_UNROLL
    for (int i = 0; i < kExperts; ++i) pending[i] = has_blocks(pending[i]) ? pending[i] : 0;
    const Pick mine = group.pick(pending, index - count);
    if (index >= count && mine.position >= 0) {
      my_expert_ = next_expert_ + mine.position;
      my_pending_ = mine.value;
    }
    count += mine.total;
    const auto size = static_cast<std::uint32_t>(group.size());
    next_expert_ += kExperts * group.size();
    knows_all_ = next_expert_ >= geometry().num_local_experts;
    if (count <= size) return;
    num_left_ = count - size;  // for the next round
    next_expert_ = group.first(group.index() == group.size() - 1, my_expert_) + 1;
  }

  /// M-blocks to be cut of an expert's `pending` rows: all when flushing, else those before which there are the rows of a
  /// full one and as many as the last may have beyond it.
  FLASHMOE_HD std::uint32_t blocks_for(std::uint32_t pending) const {
    if (!has_blocks(pending)) return 0;
    return flushing_ ? m_blocks_of(geometry().tile, pending) : full_m_blocks_of(geometry().tile, pending);
  }

  /// Whether blocks_for() is any.
  FLASHMOE_HD bool has_blocks(std::uint32_t pending) const {
    return flushing_ ? pending > 0 : pending >= static_cast<std::uint32_t>(geometry().tile.most_rows());
  }

  /// The m-blocks of a group that this thread's expert has rows for: the ring has places for three groups.
  FLASHMOE_HD std::uint32_t wanted_blocks() const {
    const std::uint32_t blocks = blocks_for(my_pending_);
    if (blocks <= 1) return blocks;
    const std::uint32_t third = num_places() / 3;
    const std::uint32_t most = third > kMostGrouped ? kMostGrouped : third > 0 ? third : 1;
    const std::uint32_t groups = (blocks + most - 1) / most;
    return groups > 1 ? (blocks + groups - 1) / groups : blocks;
  }

  /// Some m-blocks of the next experts that have any, or the end of the pass. Each thread of the group cuts those of one expert.
  FLASHMOE_HD Step cut_next(const Group& group) {
    const int ahead = leaders_unclaimed(group);  // read beside the rows
    if (!looked_) look(group);
    const Scan wanted = group.scan(wanted_blocks());
    if (wanted.total > 0 || rehearsing_) return cut(group, wanted, ahead);
    end_pass();
    // The end of a pass is no progress: a rank that flushes in vain while a peer is missing must look stalled.
    return waiting(SignalKind::landed, num_cut_, retired_);
  }

  FLASHMOE_HD MBlock& block_at(std::uint64_t cut) const { return call_.m_block(index_of(cut)); }
  FLASHMOE_HD std::uint32_t index_of(std::uint64_t cut) const {
    return static_cast<std::uint32_t>(cut) % num_places();  // of one call: 32 bits are enough, and a GPU divides them sooner
  }

  FLASHMOE_HD std::uint32_t num_places() const { return static_cast<std::uint32_t>(geometry().num_m_blocks); }

  /// How many of the next places of the intermediate ring are free without a gap, as far as `wanted` makes it look.
  FLASHMOE_HD std::uint32_t free_blocks(const Group& group, std::uint32_t wanted) {
    const auto size = static_cast<std::uint32_t>(group.size());
    const auto index = static_cast<std::uint32_t>(group.index());
    while (num_free_ < wanted) {
      const std::uint32_t place = num_free_ + index;
      const bool mine = place < num_places() && observe<Scope::device>(&block_at(num_cut_ + place).free) != 0;
      const std::uint32_t found = count_leading(group, mine);
      num_free_ += found;
      if (found < size) break;
    }
    return num_free_;
  }

  /// `leaders_ahead`: the leader's unclaimed tasks.
  FLASHMOE_HD Step cut(const Group& group, const Scan& wanted, int leaders_ahead) {
    const int ahead = group.broadcast(leaders_ahead);
    TaskBatch ups{.kind = TaskKind::up, .index = index_of(num_cut_ + wanted.before)};
    if (!enough_with(ahead, wanted.before) && wanted.before < most_cut_) ups.size = wanted_blocks();
    const std::uint32_t total = group.sum(ups.size);
    const std::uint32_t most = total < num_places() ? total : num_places();
    const std::uint32_t free = free_blocks(group, most);
    if (wanted.before + ups.size > free) {  // part of a group only where processors would have to wait for the whole
      ups.size = few(ahead) && wanted.before < free ? free - wanted.before : 0;
    }
    const std::uint32_t count = group.sum(ups.size);
    if (count == 0 && wanted.total > 0) {
      if (!nothing_will_land()) read_progress(group);  // rows land meanwhile, maybe all
      return waiting(SignalKind::task, num_cut_, retired_);
    }
    group.sync();
    std::uint32_t rows = my_pending_;
    if (ups.size > 0 || (rehearsing_ && my_expert_ < geometry().num_local_experts)) {
      const ExpertCut cut{my_expert_, index_of(num_cut_ + wanted.before), ups.size, my_pending_, rehearsing_, false};
      const std::uint32_t taken = fill_m_blocks(call_, cut, RowsByCursors(call_, my_expert_, nothing_will_land()));
      my_pending_ = my_pending_ > taken ? my_pending_ - taken : 0;  // it may have taken what has landed since
      rows = rows > taken ? rows : taken;  // of one m-block all that it has, as half tiles have no room for more
    }
    group.sync();
    num_cut_ += count;
    num_free_ -= count;
    if (!group.any(wanted_blocks() > 0)) {  // to the next experts
      first_expert_ = next_expert_;
      looked_ = false;
      if (rehearsing_ || first_expert_ >= geometry().num_local_experts) end_pass();
    }
    if (nothing_will_land()) choose_ups(call_, ups_so_far(wanted, count, rows), ups);
    call_.task_ring().publish(group, ups, sole());
    return Step::advanced;
  }

  /// Of this thread's m-blocks, of `rows` rows; `count` have been cut with them.
  FLASHMOE_HD NarrowUps ups_so_far(const Scan& wanted, std::uint32_t count, std::uint32_t rows) const {
    return {.rows = rows,
            .of_call = knows_all_ ? static_cast<std::uint32_t>(num_cut_) - count + wanted.total + num_left_ : 0,
            .cut = static_cast<std::uint32_t>(num_cut_),
            .from_here = cutting_ ? 0 : count - wanted.before};
  }

  /// Down tasks of the next m-blocks, in whole groups, behind which the up tasks of `lag` more have been published.
  FLASHMOE_HD bool publish_downs(const Group& group, std::uint64_t lag) {
    if (num_cut_ - num_downs_ <= lag) return false;
    std::uint64_t end = num_cut_ - lag;
    if (lag > 0) end -= block_at(end).group_offset;
    if (end <= num_downs_) return false;
    const std::uint64_t retired = nothing_to_cut() && call_.plan.narrow_ends ? peek(&call_.counters().retired_blocks) : 0;
    const auto size = static_cast<std::uint64_t>(group.size());
    const auto index = static_cast<std::uint64_t>(group.index());
    fence_release<Scope::device>();
    GroupPlace next = place_in_group(num_downs_ + index, end);
    for (; num_downs_ < end; num_downs_ += size) {
      const std::uint64_t cut = num_downs_ + index;
      const GroupPlace place = next;
      next = place_in_group(cut + size, end);  // on its way while these are published
      TaskBatch downs{.kind = TaskKind::down, .index = index_of(cut)};
      if (place.offset == 0) downs.size = place.size;
      if (nothing_to_cut()) choose_downs(call_, {.first = cut, .cut = num_cut_, .retired = retired}, downs);
      call_.task_ring().publish_fenced(group, downs, sole());
    }
    num_downs_ = end;
    return true;
  }

  /// Of an m-block among those of its expert that were cut together.
  struct GroupPlace {
    std::uint32_t offset, size;
  };
  /// Of no m-block from `end` on.
  FLASHMOE_HD GroupPlace place_in_group(std::uint64_t cut, std::uint64_t end) const {
    if (cut >= end) return {0, 0};
    return {block_at(cut).group_offset, block_at(cut).group_size};
  }

  /// Reduce tasks come from processors, until the last wave has retired.
  FLASHMOE_HD bool no_more_tasks() const {
    return nothing_will_land() &&
           (!call_.pre_reduced() ||
            observe<Scope::device>(&call_.counters().retired_waves) == total_waves());
  }

  /// Of all sources, once all are closed.
  FLASHMOE_HD std::uint64_t total_waves() const {
    std::uint64_t total = 0;
    for (int source = 0; source < geometry().num_ranks; ++source) total += call_.epoch_state().num_waves[source];
    return total;
  }

  FLASHMOE_HD Step publish_exits(const Group& group) {
    const auto count = static_cast<std::uint32_t>(call_.roster.num_processors);
    call_.task_ring().publish_one(group, {.kind = TaskKind::exit, .size = count}, sole());
    finished_ = true;
    return Step::finished;
  }

  /// Nothing to cut. When nothing runs either, but rows wait for a fuller tile, stop waiting after a while.
  FLASHMOE_HD Step flush_if_starved() {
    if (retired_ == num_cut_ && !nothing_will_land() && ++idle_steps_ == call_.flush_after_idle_steps) {
      start_pass(true);
      return Step::idle;
    }
    return waiting(SignalKind::landed, num_cut_, retired_);
  }

  /// Groups are cut together up to that which reaches so many m-blocks, or a task for every processor.
  static constexpr std::uint32_t kMostCut = 32;
  FLASHMOE_HD static std::uint32_t most_cut(const Call& call) {
    const auto round = static_cast<std::uint32_t>(call.roster.num_processors / up_tasks_of_m_block(call));
    return round > kMostCut ? round : kMostCut;
  }
  /// With so many tasks a processor that none has taken nothing is cut.
  static constexpr int kEnough = 4;
  /// The same while rows are still to land, in elements of k, of which a task has more or fewer: what lands meanwhile joins the
  /// next group.
  static constexpr int kEarlyElements = 4096;
  FLASHMOE_HD static int enough_early(const Call& call) {
    const int at_once = call.geometry().tile.up_tiles_at_once;
    const int products = (call.plan.up_tiles + at_once - 1) / at_once;
    const int tasks = kEarlyElements / (products * call.geometry().hidden);
    return tasks < 1 ? 1 : tasks > kEnough ? kEnough : tasks;
  }

  /// So far behind an m-block's up tasks come its down tasks, where there are others to put between: as many up tasks as
  /// processors have begun or are about to.
  FLASHMOE_HD static std::uint64_t lag_of(const Call& call) {
    const int tiles = call.geometry().num_up_tiles();
    const int between = 2 * call.roster.num_processors * call.plan.up_tiles;
    return static_cast<std::uint64_t>((between + tiles - 1) / tiles);
  }

  const Call& call_;
  std::uint64_t lag_;  ///< in m-blocks
  int enough_early_;   ///< tasks a processor
  std::uint32_t most_cut_;  ///< m-blocks at once
  TaskCursor published_;  ///< of a sole publisher, the leader's
  /// The first pass looks at the first experts alone and cuts nothing: a GPU fetches the code that it has not run yet, and
  /// there is time for that only now.
  bool rehearsing_ = true;
  std::uint32_t closed_ = 0;
  std::uint32_t version_ = 0;       ///< when the pass began
  std::uint32_t seen_version_ = 0;  ///< the last
  std::uint64_t retired_ = 0;       ///< m-blocks, as seen while rows were to land
  std::uint64_t num_cut_ = 0;
  std::uint32_t num_free_;             ///< places after those of all cut that are known to be free: all at first
  std::uint64_t num_downs_ = 0;        ///< m-blocks whose down tasks are published
  int first_expert_ = 0;           ///< of the group's current round of the pass
  int next_expert_ = 0;            ///< of its next round
  int my_expert_ = 0;              ///< this thread's
  std::uint32_t my_pending_ = 0;   ///< its rows
  std::uint32_t num_left_ = 0;     ///< experts with rows that were seen behind those of the group's threads
  bool knows_all_ = false;         ///< no more have any
  bool looked_ = false;            ///< what begins with next_expert_ is known
  int idle_steps_ = 0;
  bool awaits_cut_ = kHasHelp;
  bool cutting_ = true;
  bool flushing_ = false;
  bool finished_ = false;
  Wait wait_;
};

}  // namespace flashmoe
