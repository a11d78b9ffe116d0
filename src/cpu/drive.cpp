#include "cpu/drive.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>
#include <vector>

namespace flashmoe::cpu {

namespace {

using Clock = std::chrono::steady_clock;

double us_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double, std::micro>(end - begin).count();
}

double& phase_of(PhaseTimes& phases, Actor actor) {
  switch (actor) {
    case Actor::dispatcher: return phases.dispatch_us;
    case Actor::subscriber: return phases.subscribe_us;
    case Actor::scheduler: return phases.schedule_us;
    case Actor::processor: return phases.process_us;
    case Actor::combiner: return phases.combine_us;
  }
  return phases.idle_us;
}

/// What the threads of one rank share.
struct Drive {
  RankProgram<Fabric>& program;
  const Call& call;
  Heap& heap;
  double deadline_seconds;
  std::vector<TraceBuffer> traces;  // [num_actors], or none

  std::atomic<bool> stop{false};
  std::atomic<bool> failed{false};
  std::mutex mutex;  // of exception and phases
  std::exception_ptr exception;
  PhaseTimes phases;
};

std::uint64_t ns_of(Clock::time_point time) {
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count());
}

void record_step(Drive& drive, int actor, Clock::time_point begin, Clock::time_point end) {
  TraceRecord record = drive.program.record(actor);
  record.begin_ns = ns_of(begin);
  record.end_ns = ns_of(end);
  drive.traces[static_cast<std::size_t>(actor)].add(record);
}

/// Room for the records of every actor, in the trace itself.
std::vector<TraceBuffer> begin_trace(const RankProgram<Fabric>& program, RankTrace* trace) {
  std::vector<TraceBuffer> buffers;
  if (trace == nullptr) return buffers;
  trace->actors.assign(static_cast<std::size_t>(program.num_actors()), ActorTrace{});
  for (int actor = 0; actor < program.num_actors(); ++actor) {
    ActorTrace& own = trace->actors[static_cast<std::size_t>(actor)];
    own.actor = program.kind(actor);
    own.index = program.index_of_kind(actor);
    own.records.resize(trace->capacity);
    buffers.emplace_back(own.records.data(), static_cast<std::uint32_t>(trace->capacity));
  }
  return buffers;
}

void end_trace(std::vector<TraceBuffer>& buffers, RankTrace* trace) {
  for (std::size_t actor = 0; actor < buffers.size(); ++actor) {
    buffers[actor].finish();
    trace->actors[actor].records.resize(buffers[actor].num_records());
    trace->actors[actor].num_dropped = buffers[actor].num_dropped();
  }
}

/// Backs off while nothing happens: first gives way, then sleeps, so that waiting ranks leave the cores to working ones.
void back_off(int idle_rounds) {
  if (idle_rounds < 64) {
    std::this_thread::yield();
  } else {
    std::this_thread::sleep_for(std::chrono::microseconds(std::min(idle_rounds, 200)));
  }
}

/// Steps actors first, first + stride, ... until they finish or the rank stops.
void step_actors(Drive& drive, int first, int stride) {
  PhaseTimes phases;
  int idle_rounds = 0;
  std::uint64_t last_progress = drive.heap.progress().load(std::memory_order_relaxed);
  Clock::time_point last_change = Clock::now();
  Clock::time_point now = last_change;
  while (!drive.stop.load(std::memory_order_relaxed)) {
    bool finished = true;
    bool advanced = false;
    for (int actor = first; actor < drive.program.num_actors(); actor += stride) {
      if (drive.program.status(actor) == Step::finished) continue;
      const Step step = drive.program.step(actor);
      const Clock::time_point after = Clock::now();
      if (!drive.traces.empty()) record_step(drive, actor, now, after);
      const double spent = us_between(now, after);
      now = after;
      (step == Step::idle ? phases.idle_us : phase_of(phases, drive.program.kind(actor))) += spent;
      finished = finished && step == Step::finished;
      advanced = advanced || step == Step::advanced || step == Step::finished;
      if (step == Step::failed) {
        drive.failed = true;
        drive.stop = true;
      }
    }
    if (finished) break;
    if (advanced) {
      drive.heap.progress().fetch_add(1, std::memory_order_relaxed);
      idle_rounds = 0;
      continue;
    }
    if (aborted(drive.call)) drive.stop = true;
    const std::uint64_t progress = drive.heap.progress().load(std::memory_order_relaxed);
    if (progress != last_progress) {
      last_progress = progress;
      last_change = now;
    } else if (us_between(last_change, now) > drive.deadline_seconds * 1e6) {
      drive.stop = true;
    }
    back_off(++idle_rounds);
    const Clock::time_point after = Clock::now();
    phases.idle_us += us_between(now, after);
    now = after;
  }
  const std::lock_guard lock(drive.mutex);
  for (double PhaseTimes::*phase : {&PhaseTimes::dispatch_us, &PhaseTimes::subscribe_us, &PhaseTimes::schedule_us,
                                    &PhaseTimes::process_us, &PhaseTimes::combine_us, &PhaseTimes::idle_us}) {
    drive.phases.*phase += phases.*phase;
  }
}

void step_actors_safely(Drive& drive, int first, int stride) {
  try {
    step_actors(drive, first, stride);
  } catch (...) {
    const std::lock_guard lock(drive.mutex);
    if (!drive.exception) drive.exception = std::current_exception();
    drive.stop = true;
  }
}

}  // namespace

DriveResult drive(RankProgram<Fabric>& program, const Call& call, Heap& heap, const DriveOptions& options) {
  const Clock::time_point begin = Clock::now();
  Drive state{.program = program, .call = call, .heap = heap, .deadline_seconds = options.deadline_seconds,
              .traces = begin_trace(program, options.trace), .mutex = {}, .exception = {}, .phases = {}};
  const int stride =
      options.num_threads <= 0 ? program.num_actors() : std::min(options.num_threads, program.num_actors());
  std::vector<std::jthread> helpers;
  for (int thread = 1; thread < stride; ++thread) {
    helpers.emplace_back([&state, thread, stride] { step_actors_safely(state, thread, stride); });
  }
  step_actors_safely(state, 0, stride);
  helpers.clear();
  end_trace(state.traces, options.trace);

  DriveResult result;
  result.phases = state.phases;
  result.phases.wall_us = us_between(begin, Clock::now());
  result.exception = state.exception;
  result.finished = !state.exception && !state.failed;
  for (int actor = 0; actor < program.num_actors(); ++actor) {
    result.finished = result.finished && program.status(actor) == Step::finished;
  }
  if (result.finished) return result;
  result.stall = program.stall();
  if (result.exception) result.stall->wait = {SignalKind::rank_failed, call.rank, 0, 0};
  return result;
}

Stall settle_stall(const Call& call, Heap& heap, const Stall& own, double grace_seconds) {
  Traffic ignored;
  Fabric fabric(heap.bases(), call.rank, &ignored);
  raise_abort(call, fabric, own);
  const Clock::time_point end = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                                   std::chrono::duration<double>(grace_seconds));
  std::vector<Stall> posted = posted_stalls(call);
  const auto all_posted = [&] {
    return std::all_of(posted.begin(), posted.end(), [](const Stall& stall) { return stall.rank >= 0; });
  };
  while (!all_posted() && Clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    posted = posted_stalls(call);
  }
  return explain(posted, call.rank);
}

}  // namespace flashmoe::cpu
