// What an actor did when: the records of a timeline, written by whoever steps the actor, on the CPU and on the GPU.
#pragma once

#include <cstdint>

#include "actors/step.hpp"
#include "actors/task.hpp"
#include "core/annotate.hpp"

namespace flashmoe {

/// One span of one actor: work that one step did, or a wait of one cause over any number of idle steps.
struct alignas(16) TraceRecord {
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

  /// Kind, task kind, signal and peer in one word: all but which task and when.
  FLASHMOE_HD constexpr std::uint32_t what() const {
    return static_cast<std::uint32_t>(kind) | static_cast<std::uint32_t>(task_kind) << 8 |
           static_cast<std::uint32_t>(signal) << 16 | static_cast<std::uint32_t>(peer) << 24;
  }
};

/// One actor's records in memory that somebody else owns; for one thread, or one leader of a group, at a time. A span's
/// record is written when it begins and its end when the next one does, so that the common case, a wait that goes on,
/// touches nothing but this object: on a GPU, two words of shared memory.
class alignas(16) TraceBuffer {
 public:
  TraceBuffer() = default;
  FLASHMOE_HD TraceBuffer(TraceRecord* records, std::uint32_t capacity) : records_(records), capacity_(capacity) {}

  /// Adds a span. A wait that goes on after the one before, and work that follows at once on work that is no task,
  /// become one with it. Once the memory is full, spans are counted and let go, so that what is there stays a faithful
  /// beginning.
  FLASHMOE_HD void add(const TraceRecord& record) {
    const std::uint32_t what = record.what();
    if (what != what_ || !continues(record)) {
      finish();
      what_ = what;
      if (num_records_ < capacity_) {
        store(records_[num_records_++], record);
      } else {
        ++num_dropped_;
      }
    }
    end_ns_ = record.end_ns;
  }

  /// Writes the end of the latest span; before records are read.
  FLASHMOE_HD void finish() {
    if (num_records_ > 0 && num_dropped_ == 0) records_[num_records_ - 1].end_ns = end_ns_;
  }

  FLASHMOE_HD std::uint32_t capacity() const { return capacity_; }
  FLASHMOE_HD std::uint32_t num_records() const { return num_records_; }
  FLASHMOE_HD std::uint32_t num_dropped() const { return num_dropped_; }

 private:
  /// Steps of one stretch of work are this close.
  static constexpr std::uint64_t kAtOnceNs = 1000;
  static constexpr std::uint32_t kNothing = ~std::uint32_t{0};  ///< no record's what()

  /// After one that is the same but for its times.
  FLASHMOE_HD bool continues(const TraceRecord& record) const {
    if (record.kind == TraceRecord::Kind::wait) return true;
    return record.kind == TraceRecord::Kind::work && record.begin_ns <= end_ns_ + kAtOnceNs;
  }

  /// Member by member: device code would copy the whole byte by byte.
  FLASHMOE_HD static void store(TraceRecord& to, const TraceRecord& from) {
    to.begin_ns = from.begin_ns;
    to.end_ns = from.end_ns;
    to.kind = from.kind;
    to.task_kind = from.task_kind;
    to.signal = from.signal;
    to.peer = from.peer;
    to.index = from.index;
    to.tile = from.tile;
  }

  TraceRecord* records_ = nullptr;
  std::uint32_t capacity_ = 0;
  std::uint32_t num_records_ = 0;
  std::uint64_t end_ns_ = 0;       ///< of the latest span
  std::uint32_t what_ = kNothing;  ///< of the latest span
  std::uint32_t num_dropped_ = 0;
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
