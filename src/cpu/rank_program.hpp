// The actors of one rank for one epoch, behind one interface: what a kernel is on the GPU.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <vector>

#include "actors/combiner.hpp"
#include "actors/dispatcher.hpp"
#include "actors/processor.hpp"
#include "actors/scheduler.hpp"
#include "actors/stall.hpp"
#include "actors/subscriber.hpp"
#include "actors/trace.hpp"
#include "cpu/engine.hpp"
#include "cpu/fabric.hpp"

namespace flashmoe::cpu {

/// Actor i of a rank: dispatchers and combiners, then the subscribers, the scheduler, the processors and the helpers.
/// FabricT is Fabric, or one that delays deliveries.
template <class FabricT>
class RankProgram {
 public:
  /// `make_fabric(Traffic*)` gives an actor its fabric. `call`, `engines` (one per processor) must outlive the program.
  template <class MakeFabric>
  RankProgram(const Call& call, std::vector<Engine>& engines, const MakeFabric& make_fabric)
      : call_(call), traffic_(static_cast<std::size_t>(num_actors())), statuses_(static_cast<std::size_t>(num_actors())) {
    int actor = 0;
    for (int i = 0; i < call.roster.num_dispatchers; ++i) {
      dispatchers_.emplace_back(call, make_fabric(traffic_of(actor++)), i);
      combiners_.emplace_back(call, i);
      ++actor;
    }
    for (int i = 0; i < call.roster.num_subscribers; ++i) {
      subscribers_.emplace_back(call, make_fabric(traffic_of(actor++)), i);
    }
    ++actor;
    for (int i = 0; i < call.roster.num_processors; ++i) {
      processors_.emplace_back(call, make_fabric(traffic_of(actor++)), engines[static_cast<std::size_t>(i)]);
    }
    for (int i = 0; i < call.roster.num_helpers; ++i) combiners_.push_back(Combiner<SoloGroup>::helper(call, i));
    scheduler_ = std::make_unique<Scheduler<SoloGroup>>(call);
    processor_done_ = std::make_unique<std::atomic<bool>[]>(processors_.size());
  }

  static int num_actors(const Roster& roster) { return first_helper(roster) + roster.num_helpers; }
  int num_actors() const { return num_actors(call_.roster); }

  Actor kind(int actor) const {
    if (actor < first_subscriber(call_.roster)) return actor % 2 == 0 ? Actor::dispatcher : Actor::combiner;
    if (actor < first_processor(call_.roster) - 1) return Actor::subscriber;
    if (actor < first_processor(call_.roster)) return Actor::scheduler;
    return actor < first_helper(call_.roster) ? Actor::processor : Actor::combiner;
  }

  /// Its place among the actors of its kind.
  int index_of_kind(int actor) const {
    switch (kind(actor)) {
      case Actor::dispatcher: return actor / 2;
      case Actor::combiner:
        return actor < first_subscriber(call_.roster) ? actor / 2
                                                      : call_.roster.num_dispatchers + actor - first_helper(call_.roster);
      case Actor::subscriber: return actor - first_subscriber(call_.roster);
      case Actor::scheduler: return 0;
      case Actor::processor: return actor - first_processor(call_.roster);
    }
    return 0;
  }

  /// One step of one actor that has not finished. Different actors may be stepped by different threads. A helper does nothing
  /// before its processor has finished, whose threads it would be.
  Step step(int actor) {
    const SoloGroup group;
    Step result = Step::idle;
    if (actor < first_helper(call_.roster) || may_help(actor)) with(actor, [&](auto& it) { result = it.step(group); });
    if (kind(actor) == Actor::processor && result == Step::finished) processor_done_[index_of_kind(actor)] = true;
    statuses_[static_cast<std::size_t>(actor)] = result;
    return result;
  }

  /// What the actor waits for; meaningful after an idle or failed step, to the thread that stepped it.
  Wait wait(int actor) {
    Wait result;
    with(actor, [&](auto& it) { result = it.wait(); });
    return result;
  }

  /// The record of the actor's last step without its times; to the thread that stepped it.
  TraceRecord record(int actor) {
    const Task* ran = nullptr;
    if (kind(actor) == Actor::processor) ran = processors_[static_cast<std::size_t>(index_of_kind(actor))].ran();
    return describe_step(status(actor), wait(actor), ran);
  }

  /// Result of the actor's last step.
  Step status(int actor) const { return statuses_[static_cast<std::size_t>(actor)]; }

  /// The wait that best explains why the rank is not done, once no thread steps it any more.
  Stall stall() {
    Stall best{.rank = call_.rank, .actor = Actor::scheduler, .wait = {}};
    for (int actor = 0; actor < num_actors(); ++actor) {
      if (status(actor) == Step::finished || status(actor) == Step::advanced) continue;
      const Wait candidate = wait(actor);
      if (outranks(candidate, best.wait)) best = {call_.rank, kind(actor), candidate};
    }
    return best;
  }

  Traffic traffic() const {
    Traffic sum;
    for (const Traffic& each : traffic_) {
      sum.payload_bytes += each.payload_bytes;
      sum.overhead_bytes += each.overhead_bytes;
    }
    return sum;
  }

 private:
  Traffic* traffic_of(int actor) { return &traffic_[static_cast<std::size_t>(actor)]; }

  static int first_subscriber(const Roster& roster) { return 2 * roster.num_dispatchers; }
  /// The scheduler comes before it.
  static int first_processor(const Roster& roster) { return first_subscriber(roster) + roster.num_subscribers + 1; }
  static int first_helper(const Roster& roster) { return first_processor(roster) + roster.num_processors; }

  bool may_help(int helper) const {
    return processor_done_[(helper - first_helper(call_.roster)) % call_.roster.num_processors];
  }

  template <class Function>
  void with(int actor, const Function& function) {
    const auto index = static_cast<std::size_t>(index_of_kind(actor));
    switch (kind(actor)) {
      case Actor::dispatcher: function(dispatchers_[index]); break;
      case Actor::combiner: function(combiners_[index]); break;
      case Actor::subscriber: function(subscribers_[index]); break;
      case Actor::scheduler: function(*scheduler_); break;
      case Actor::processor: function(processors_[index]); break;
    }
  }

  const Call& call_;
  std::vector<Traffic> traffic_;
  std::vector<Step> statuses_;
  std::vector<Dispatcher<SoloGroup, FabricT>> dispatchers_;
  std::vector<Combiner<SoloGroup>> combiners_;
  std::vector<Subscriber<SoloGroup, FabricT>> subscribers_;
  std::unique_ptr<Scheduler<SoloGroup>> scheduler_;
  std::vector<Processor<SoloGroup, FabricT, Engine>> processors_;
  std::unique_ptr<std::atomic<bool>[]> processor_done_;  // [num_processors]
};

/// What the last actor out does once all have finished: the epoch's counters start over, the heap's go on.
inline void finish_epoch(const Call& call) {
  EpochState& state = call.epoch_state();
  if (!call.lined()) {
    for (int source = 0; source < call.geometry().num_ranks; ++source) {
      state.wave_sequence[source] += state.num_waves[source];
    }
  }
  ++state.epoch;
  call.task_ring_state().begun = call.task_ring_state().published;
  call.counters() = {};
  for (int source = 0; source < call.geometry().num_ranks; ++source) {
    *call.lined_ready(source) = 0;
    std::fill_n(call.lined_arrivals(source), lined_slot_blocks(call.geometry()), std::uint64_t{0});
  }
}

}  // namespace flashmoe::cpu
