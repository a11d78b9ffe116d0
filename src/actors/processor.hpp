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
      : call_(call), fabric_(fabric), engine_(engine), completion_(call, fabric) {}

  FLASHMOE_HD Step step(const Group& group) {
    ran_ = false;
    if (finished_) return Step::finished;
    if (!completion_.idle()) return complete(group);
    if (!claimed_) {
      ticket_ = group.broadcast(group.leader() ? call_.ready_ring().claim() : 0);
      claimed_ = true;
    }
    return take(group);
  }

  FLASHMOE_HD const Wait& wait() const { return wait_; }

  /// The task that the last step ran; null when it did something else.
  FLASHMOE_HD const Task* ran() const { return ran_ ? &task_ : nullptr; }

 private:
  FLASHMOE_HD Step complete(const Group& group) {
    const Step step = completion_.step(group);
    if (step == Step::idle) wait_ = completion_.wait();
    return step;
  }

  FLASHMOE_HD Step take(const Group& group) {
    Task task;
    bool taken = false;
    if (group.leader()) taken = call_.ready_ring().try_take(ticket_, task);
    if (!group.broadcast(taken)) {
      wait_ = {SignalKind::task, call_.rank, ticket_, 0};
      return Step::idle;
    }
    task = group.broadcast(task);
    claimed_ = false;
    finished_ = task.kind == TaskKind::exit;
    if (finished_) return Step::finished;
    run(group, task);
    task_ = task;
    ran_ = true;
    completion_.begin(group, task);
    return Step::advanced;
  }

  FLASHMOE_HD void run(const Group& group, const Task& task) {
    const int tile = static_cast<int>(task.tile);
    if (task.kind == TaskKind::up) {
      engine_.up(group, call_, call_.m_block(task.index), task.index, tile);
    } else if (task.kind == TaskKind::down) {
      engine_.down(group, call_, fabric_, call_.m_block(task.index), task.index, tile);
    } else {
      const std::uint32_t count = reduce_slots(call_.wave(static_cast<int>(task.wave_slot)), task.tile);
      engine_.reduce(group, call_, fabric_, task.wave_slot, task.tile * kReduceSlots, count);
    }
  }

  const Call& call_;
  Fabric fabric_;
  Engine& engine_;
  Completion<Group, Fabric> completion_;
  std::uint64_t ticket_ = 0;
  bool claimed_ = false;
  bool finished_ = false;
  bool ran_ = false;
  Task task_;  // of ran()
  Wait wait_;
};

}  // namespace flashmoe
