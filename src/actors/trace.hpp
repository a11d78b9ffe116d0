// What an actor did when: the records of a timeline, written by whoever steps the actor, on the CPU and on the GPU.
#pragma once

#include <cstdint>

#include "actors/step.hpp"
#include "actors/task.hpp"
#include "core/annotate.hpp"

namespace flashmoe {

/// One span of one actor: work that one step did, or a wait of one cause over any number of idle steps.
struct TraceRecord {
  enum class Kind : std::uint8_t {
    work,  ///< a step that advanced or finished
    task,  ///< a processor's step that ran a task
    wait,  ///< idle steps, from the begin of the first to the end of the last
  };

  std::uint64_t begin_ns = 0;  ///< of one clock for all ranks
  std::uint64_t end_ns = 0;
  Kind kind = Kind::work;
  TaskKind task_kind = TaskKind::exit;   ///< of a task
  SignalKind signal = SignalKind::none;  ///< of a wait
  std::uint8_t peer = 0;                 ///< of a wait: the rank waited for
  std::uint32_t index = 0;               ///< of a task: m-block, or wave slot of a reduce
  std::uint32_t tile = 0;                ///< of a task
};

/// One actor's records in memory that somebody else owns; for one thread, or one leader of a group, at a time.
class TraceBuffer {
 public:
  FLASHMOE_HD TraceBuffer(TraceRecord* records, std::uint32_t capacity) : records_(records), capacity_(capacity) {}

  /// Adds a record. A wait that goes on after the one before, and work that follows at once on work that is no task,
  /// become one with it. Once the buffer is full, spans are counted and let go, so that what is there stays a faithful
  /// beginning.
  FLASHMOE_HD void add(const TraceRecord& record) {
    if (num_records_ > 0 && num_dropped_ == 0 && continues(records_[num_records_ - 1], record)) {
      records_[num_records_ - 1].end_ns = record.end_ns;
    } else if (num_records_ < capacity_) {
      records_[num_records_++] = record;
    } else {
      ++num_dropped_;
    }
  }

  FLASHMOE_HD std::uint32_t num_records() const { return num_records_; }
  FLASHMOE_HD std::uint64_t num_dropped() const { return num_dropped_; }

 private:
  /// Steps of one stretch of work are this close; a GPU's clock ticks in steps of up to a microsecond.
  static constexpr std::uint64_t kAtOnceNs = 1000;

  FLASHMOE_HD static bool continues(const TraceRecord& before, const TraceRecord& record) {
    if (before.kind != record.kind || record.kind == TraceRecord::Kind::task) return false;
    if (record.kind == TraceRecord::Kind::work) return record.begin_ns <= before.end_ns + kAtOnceNs;
    return before.signal == record.signal && before.peer == record.peer;
  }

  TraceRecord* records_;
  std::uint32_t capacity_;
  std::uint32_t num_records_ = 0;
  std::uint64_t num_dropped_ = 0;
};

/// The record of a step without its times. `wait`: after an idle step, what the actor waits for; `ran`: the task that a
/// processor's step ran, or null.
FLASHMOE_HD inline TraceRecord describe_step(Step step, const Wait& wait, const Task* ran) {
  TraceRecord record;
  if (step == Step::idle) {
    record.kind = TraceRecord::Kind::wait;
    record.signal = wait.signal;
    record.peer = static_cast<std::uint8_t>(wait.peer);
  } else if (ran != nullptr) {
    record.kind = TraceRecord::Kind::task;
    record.task_kind = ran->kind;
    record.index = ran->kind == TaskKind::reduce ? ran->wave_slot : ran->index;
    record.tile = ran->tile;
  }
  return record;
}

}  // namespace flashmoe
