// The kernel: one launch is one rank's epoch, dispatch to combine. Every block runs one processor and, on its service
// warps, dispatchers with their combiners; block 0 also runs the subscriber and the scheduler.
#pragma once

#include "actors/combiner.hpp"
#include "actors/dispatcher.hpp"
#include "actors/processor.hpp"
#include "actors/scheduler.hpp"
#include "actors/subscriber.hpp"
#include "cuda/combine.cuh"
#include "cuda/fabric.cuh"
#include "cuda/giving_up.cuh"
#include "cuda/groups.cuh"
#include "cuda/kernel_args.hpp"
#include "cuda/tile_engine.cuh"

namespace flashmoe::cuda_backend {

/// A block's shared memory.
struct BlockMemory {
  TileMemory tile;
  alignas(16) Call call;
  alignas(8) char broadcast[ProcessorGroup::kScratchBytes];
  Traffic traffic;
};

/// The call as the actors see it, with what only device memory knows.
__device__ inline void load_call(const KernelArgs& args, BlockMemory& block) {
  static_assert(sizeof(Call) % sizeof(std::uint32_t) == 0);
  const auto* source = reinterpret_cast<const std::uint32_t*>(&args.call);
  auto* target = reinterpret_cast<std::uint32_t*>(&block.call);
  for (unsigned word = threadIdx.x; word < sizeof(Call) / sizeof(std::uint32_t); word += blockDim.x) {
    target[word] = source[word];
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    block.call.epoch = block.call.epoch_state().epoch;
    if (args.num_tokens != nullptr) block.call.num_tokens = *args.num_tokens;
    block.traffic = {0, 0};
  }
  __syncthreads();
}

/// Steps one actor until it is finished or its rank gives up.
template <class Group, class ActorT>
__device__ void run_actor(const KernelArgs& args, const Call& call, const Group& group, Actor kind, ActorT& actor) {
  Watch<Group> watch(args, call);
  while (true) {
    const Step step = actor.step(group);
    if (step == Step::finished) return;
    if (step == Step::advanced) {
      watch.reset();
    } else if (step == Step::failed || watch.must_stop(group)) {
      give_up(args, call, group, kind, step, actor.wait());
      return;
    }
  }
}

/// A dispatcher and its combiner take turns on one warp.
__device__ inline void run_dispatcher(const KernelArgs& args, const Call& call, const Fabric& fabric, int index) {
  const WarpGroup group;
  Dispatcher<WarpGroup, Fabric> dispatcher(call, fabric, index);
  Combiner<WarpGroup> combiner(call, index);
  Watch<WarpGroup> watch(args, call);
  Step dispatched = Step::idle;
  Step combined = Step::idle;
  while (dispatched != Step::finished || combined != Step::finished) {
    if (dispatched != Step::finished) dispatched = dispatcher.step(group);
    if (combined != Step::finished) combined = combiner.step(group);
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

__device__ inline void run_service_warp(const KernelArgs& args, const Call& call, const Fabric& fabric, int warp) {
  const WarpGroup group;
  const int service = static_cast<int>(blockIdx.x) * kServiceWarps + warp;
  if (service == 0) {
    Subscriber<WarpGroup, Fabric> subscriber(call, fabric);
    run_actor(args, call, group, Actor::subscriber, subscriber);
  } else if (service == 1) {
    Scheduler<WarpGroup> scheduler(call);
    run_actor(args, call, group, Actor::scheduler, scheduler);
  } else {
    run_dispatcher(args, call, fabric, service - 2);
  }
}

template <DType dtype>
__global__ void __launch_bounds__(kBlockThreads, 1) moe_kernel(const __grid_constant__ KernelArgs args) {
  extern __shared__ __align__(128) char shared[];
  BlockMemory& block = *reinterpret_cast<BlockMemory*>(shared);
  load_call(args, block);
  const Call& call = block.call;
  const Fabric fabric(call.heap_base, call.rank, &block.traffic);

  if (call.num_tokens < 0 || call.num_tokens > call.plan.max_tokens) {
    refuse_count(args, call);
  } else if (threadIdx.x < ProcessorGroup::kThreads) {
    const ProcessorGroup group{block.broadcast};
    TileEngine<dtype> engine(block.tile, args.weights);
    Processor<ProcessorGroup, Fabric, TileEngine<dtype>> processor(call, fabric, engine);
    run_actor(args, call, group, Actor::processor, processor);
  } else {
    run_service_warp(args, call, fabric, static_cast<int>(threadIdx.x) / 32 - kProcessorWarps);
  }
  __syncthreads();
  leave(args, call, fabric, block.traffic);
}

}  // namespace flashmoe::cuda_backend
