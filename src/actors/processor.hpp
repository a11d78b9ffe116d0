// Processor: takes ready tasks in order, lets the engine do the tile, and takes care of what follows from it.
#pragma once

#include <cstdint>

#include "actors/call.hpp"
#include "actors/completion.hpp"
#include "actors/step.hpp"

namespace flashmoe {

/// An Engine computes tiles:
///   up(group, call, m_block, tile)      rows x up_columns of the intermediate, stored in call.intermediate_row
///   down(group, call, m_block, tile)    rows x down_columns of results, pushed through the fabric to the tokens'
///                                       ranks (per_route) or stored in call.partial_row (pre_reduced)
///   reduce(group, call, wave_slot, first_slot, num_slots)   pre_reduced cells, pushed to the tokens' rank
/// A row's values must not depend on its position in the tile or on the other rows.
template <class Group, class Fabric, class Engine>
class Processor {
 public:
  FLASHMOE_HD Processor(const Call& call, Fabric fabric, Engine& engine)
      : call_(call), fabric_(fabric), engine_(engine), completion_(call, fabric), cursor_(call.task_ring().first()) {}

  FLASHMOE_HD Step step(const Group& group) {
    ran_ = false;
    if (finished_) return Step::finished;
    if (!completion_.idle()) {
      completion_.step(group);
      return Step::advanced;
    }
    if (!claimed_) {
      ticket_ = group.broadcast(group.leader() ? call_.task_ring().claim() : 0);
      claimed_ = true;
      taken_ = false;
    }
    if (!taken_ && !take(group)) return Step::idle;
    return run_when_ready(group);
  }

  FLASHMOE_HD const Wait& wait() const { return wait_; }

  /// The task that the last step ran; null when it did something else.
  FLASHMOE_HD const Task* ran() const { return ran_ ? &task_ : nullptr; }

 private:
  FLASHMOE_HD bool take(const Group& group) {
    Task task;
    if (group.leader()) taken_ = call_.task_ring().find(ticket_, cursor_, task);
    taken_ = group.broadcast(taken_);
    if (taken_) {
      task_ = group.broadcast(task);
    } else {
      wait_ = {SignalKind::task, call_.rank, ticket_, 0};
    }
    return taken_;
  }

  FLASHMOE_HD Step run_when_ready(const Group& group) {
    if (task_.kind == TaskKind::down && !all_stored(group)) return Step::idle;
    claimed_ = false;
    finished_ = task_.kind == TaskKind::exit;
    if (finished_) return Step::finished;
    run(group, task_);
    ran_ = true;
    completion_.begin(group, task_);
    return Step::advanced;
  }

  /// Whether the up tiles of the down task's m-block are stored. Their tasks come before it in the ring, so processors
  /// that wait for nothing later have them.
  FLASHMOE_HD bool all_stored(const Group& group) {
    const std::uint32_t wanted = half_tiles(call_.geometry().num_up_tiles());
    std::uint32_t stored = 0;
    if (group.leader()) stored = observe<Scope::device>(&call_.m_block(task_.index).up_done);
    stored = group.broadcast(stored);
    wait_ = {SignalKind::stored, call_.rank, wanted, stored};
    return stored == wanted;
  }

  FLASHMOE_HD void run(const Group& group, const Task& task) {
    if (task.kind == TaskKind::up || task.kind == TaskKind::down) {
      for (int i = 0; i < task.num_tiles; ++i) run_tile(group, task, static_cast<int>(task.tile) + i);
    } else {
      const std::uint32_t count = reduce_slots(call_.wave(static_cast<int>(task.wave_slot)), task.tile);
      engine_.reduce(group, call_, fabric_, task.wave_slot, task.tile * kReduceSlots, count);
    }
  }

  FLASHMOE_HD void run_tile(const Group& group, const Task& task, int tile) {
    const MBlock& block = call_.m_block(task.index);
    if (task.kind == TaskKind::up) {
      engine_.up(group, call_, block, task.index, tile);
    } else {
      engine_.down(group, call_, fabric_, block, task.index, tile);
    }
  }

  const Call& call_;
  Fabric fabric_;
  Engine& engine_;
  Completion<Group, Fabric> completion_;
  TaskCursor cursor_;         ///< the leader's
  std::uint32_t ticket_ = 0;
  bool claimed_ = false;
  bool taken_ = false;  ///< task_ is the claimed ticket's
  bool finished_ = false;
  bool ran_ = false;
  Task task_;
  Wait wait_;
};

}  // namespace flashmoe
