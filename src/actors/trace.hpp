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
    work,  ///< steps that advanced or finished, or what follows on a tile's product in a consumer
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
  /// Without room: every span is counted as dropped.
  TraceBuffer() = default;
  FLASHMOE_HD TraceBuffer(TraceRecord* records, std::uint32_t capacity) : records_(records), capacity_(capacity) {}

  /// Adds a span. A wait that goes on after the one before, and work that follows at once on work that is no task,
  /// become one with it: the latest span stays here until another begins. Once the memory is full, spans are counted
  /// and let go, so that what is there stays a faithful beginning.
  FLASHMOE_HD void add(const TraceRecord& record) {
    if (is_open_ && continues(open_, record)) {
      open_.end_ns = record.end_ns;
      return;
    }
    finish();
    open_ = record;
    is_open_ = true;
  }

  /// Writes the latest span; before records are read.
  FLASHMOE_HD void finish() {
    if (!is_open_) return;
    is_open_ = false;
    if (num_records_ < capacity_) {
      records_[num_records_++] = open_;
    } else {
      ++num_dropped_;
    }
  }

  FLASHMOE_HD std::uint32_t capacity() const { return capacity_; }
  FLASHMOE_HD std::uint32_t num_records() const { return num_records_; }
  FLASHMOE_HD std::uint64_t num_dropped() const { return num_dropped_; }

 private:
  /// Steps of one stretch of work are this close.
  static constexpr std::uint64_t kAtOnceNs = 1000;

  FLASHMOE_HD static bool continues(const TraceRecord& before, const TraceRecord& record) {
    if (before.kind != record.kind || record.kind == TraceRecord::Kind::task) return false;
    if (record.kind == TraceRecord::Kind::work) return record.begin_ns <= before.end_ns + kAtOnceNs;
    return before.signal == record.signal && before.peer == record.peer;
  }

  TraceRecord* records_ = nullptr;
  std::uint32_t capacity_ = 0;
  std::uint32_t num_records_ = 0;
  std::uint64_t num_dropped_ = 0;
  TraceRecord open_;
  bool is_open_ = false;
};

FLASHMOE_HD inline TraceRecord describe_task(const Task& task) {
  TraceRecord record;
  record.kind = TraceRecord::Kind::task;
  record.task_kind = task.kind;
  record.index = task.kind == TaskKind::reduce ? task.wave_slot : task.index;
  record.tile = task.tile;
  return record;
}

FLASHMOE_HD inline TraceRecord describe_wait(SignalKind signal, int peer) {
  TraceRecord record;
  record.kind = TraceRecord::Kind::wait;
  record.signal = signal;
  record.peer = static_cast<std::uint8_t>(peer);
  return record;
}

/// The record of a step without its times. `wait`: after an idle step, what the actor waits for; `ran`: the task that a
/// processor's step ran, or null.
FLASHMOE_HD inline TraceRecord describe_step(Step step, const Wait& wait, const Task* ran) {
  if (step == Step::idle) return describe_wait(wait.signal, wait.peer);
  return ran != nullptr ? describe_task(*ran) : TraceRecord{};
}

}  // namespace flashmoe
