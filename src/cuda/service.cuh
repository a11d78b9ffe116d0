// What every kernel's blocks do beside tiles: load the call, and run dispatchers with their combiners, the subscribers
// and the scheduler on service warps.
#pragma once

#include "actors/combiner.hpp"
#include "actors/dispatcher.hpp"
#include "actors/scheduler.hpp"
#include "actors/subscriber.hpp"
#include "cuda/combine.cuh"
#include "cuda/fabric.cuh"
#include "cuda/giving_up.cuh"
#include "cuda/groups.cuh"
#include "cuda/kernel_args.hpp"
#include "cuda/tracing.cuh"

namespace flashmoe::cuda_backend {

/// The call as the actors see it, with what only device memory knows. `gave_up`: whether the rank has, in a launch before
/// or in a block of this one. complete(): what else one thread knows of it then.
template <class Complete>
__device__ void load_call(const KernelArgs& args, Call& call, Traffic& traffic, bool& gave_up, const Complete& complete) {
  std::uint64_t epoch = 0;
  std::uint32_t giving_up = 0;
  std::int64_t num_tokens = args.call.num_tokens;
  if (threadIdx.x == 0) {  // under way while the rest is copied
    epoch = args.call.epoch_state().epoch;
    giving_up = peek(&args.state->giving_up);
    if (args.num_tokens != nullptr) num_tokens = *args.num_tokens;
  }
  static_assert(sizeof(Call) % sizeof(std::uint64_t) == 0);
  const auto* source = reinterpret_cast<const std::uint64_t*>(&args.call);
  auto* target = reinterpret_cast<std::uint64_t*>(&call);
  for (unsigned word = threadIdx.x; word < sizeof(Call) / sizeof(std::uint64_t); word += blockDim.x) {
    target[word] = source[word];
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    call.epoch = epoch;
    call.num_tokens = num_tokens;
    traffic = {0, 0};
    gave_up = giving_up != 0;
    complete();
  }
  __syncthreads();
}

/// Steps one actor until it is finished or its rank gives up. `pause_ns`: see Watch.
template <class Group, class ActorT>
__device__ void run_actor(const KernelArgs& args, const Call& call, const Group& group, Actor kind, ActorT& actor,
                          WarpLog log, unsigned pause_ns = 0) {
  Watch<Group> watch(args, call, pause_ns);
  while (true) {
    const Step step = actor.step(group);
    trace_step(args, group, log, step, actor);
    if (step == Step::finished) return;
    if (step == Step::advanced) {
      watch.reset();
    } else if (step == Step::failed || watch.must_stop(group)) {
      give_up(args, call, group, kind, step, actor.wait());
      return;
    }
  }
}

/// Between looks of the many warps that wait for results, so that they do not get in the way of the weights.
inline constexpr unsigned kCombinerPauseNs = 200;

/// A dispatcher and its combiner on one warp. What the dispatcher can do comes first: others wait for it.
template <DType dtype, class DispatcherGroup>
__device__ void run_dispatcher(const KernelArgs& args, const Call& call, const Fabric& fabric, int index,
                               WarpLog log, WarpLog combiner_log, const DispatcherGroup& dispatchers) {
  const ElementWarp<dtype> group;
  struct States {
    Dispatcher<DispatcherGroup, Fabric> dispatcher;
    Combiner<ElementWarp<dtype>> combiner;
    Watch<WarpGroup> watch;
  } kept{{call, fabric, index}, {call, index}, {args, call}};
  // They stay in (local) memory: the steps of both are long, and have use for the registers.
  States* states = &kept;
  asm volatile("" : "+l"(states)::"memory");
  auto& [dispatcher, combiner, watch] = *states;
  Step dispatched = Step::idle;
  Step combined = Step::idle;
  while (dispatched != Step::finished || combined != Step::finished) {
    if (dispatched != Step::finished) {
      dispatched = dispatcher.step(dispatchers);
      trace_step(args, group, log, dispatched, dispatcher);
      combiner_log.continue_after(args, log);
      if (dispatched == Step::finished) watch.pause(kCombinerPauseNs);
    }
    // Before there is nothing to combine: claims and rehearsals would only delay the first rows.
    if (dispatched != Step::advanced && combined != Step::finished && dispatcher.first_rows_done()) {
      combined = combiner.step(group);
      trace_step(args, group, combiner_log, combined, combiner);
      log.continue_after(args, combiner_log);
    }
    if (dispatched == Step::advanced || combined == Step::advanced) {
      watch.reset();
    } else if (dispatched == Step::failed || watch.must_stop(group)) {
      if (dispatched != Step::finished) {
        give_up(args, call, group, Actor::dispatcher, dispatched, dispatcher.wait());
      }
      if (combined != Step::finished) give_up(args, call, group, Actor::combiner, combined, combiner.wait());
      return;
    }
  }
}

/// `service` counts the service warps of all blocks, see roster_of(). `combiner_log`: of a combiner beside a dispatcher.
/// `subscribers`, `schedulers`, `dispatchers`: the group that the warp is as one of them.
template <DType dtype, class SubscriberGroup = WarpGroup, class SchedulerGroup = WarpGroup, class DispatcherGroup = WarpGroup>
__device__ __forceinline__ void run_service_warp(const KernelArgs& args, const Call& call, const Fabric& fabric, int service,
                                                 WarpLog log, WarpLog combiner_log, const SubscriberGroup& subscribers = {},
                                                 const SchedulerGroup& schedulers = {},
                                                 const DispatcherGroup& dispatchers = {}) {
  if (service < call.roster.num_subscribers) {
    Subscriber<SubscriberGroup, Fabric> subscriber(call, fabric, service);
    run_actor(args, call, subscribers, Actor::subscriber, subscriber, log);
  } else if (service == call.roster.scheduler()) {
    Scheduler<SchedulerGroup> scheduler(call);
    run_actor(args, call, schedulers, Actor::scheduler, scheduler, log);
  } else {
    run_dispatcher<dtype>(args, call, fabric, service - call.roster.first_dispatcher(), log, combiner_log, dispatchers);
  }
}

}  // namespace flashmoe::cuda_backend
