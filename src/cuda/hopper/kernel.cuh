// The Hopper kernel: the same epoch as the portable one, with blocks whose loaders and consumers overlap their tasks.
#pragma once

#include "cuda/hopper/bulk_combine.cuh"
#include "cuda/hopper/consumer.cuh"
#include "cuda/hopper/early_cut.cuh"
#include "cuda/hopper/early_plan.cuh"
#include "cuda/hopper/early_push.cuh"
#include "cuda/hopper/foreman.cuh"
#include "cuda/hopper/list_maker.cuh"
#include "cuda/hopper/loader.cuh"
#include "cuda/hopper/opening.cuh"
#include "cuda/hopper/row_sharing.cuh"
#include "cuda/service.cuh"

namespace flashmoe::cuda_backend::hopper {

template <bool kPairs>
__device__ void run_foreman(const KernelArgs& args, const Fabric& fabric, BlockMemory& block) {
  const WarpGroup group;
  Foreman<kPairs> foreman(block.call, fabric, block, static_cast<std::uint32_t>(args.decode_rows));
  run_actor(args, block.call, group, Actor::processor, foreman, WarpLog{block.logs, kForemanRow});
  foreman.dismiss(group);
  if (!kPairs && group.leader() && foreman.has_opened()) atomicAdd(&args.state->opened_tasks, 1ull);
  if (kPairs && group.leader() && foreman.num_shared() > 0) {
    atomicAdd(&args.state->shared_tasks, static_cast<unsigned long long>(foreman.num_shared()));
  }
}

/// Consumers have nothing left to multiply: they combine beside the service warps. `warp`: of the consumer warps.
template <DType dtype>
__device__ void help_combine(const KernelArgs& args, const Call& call, BlockMemory& block, int warp, WarpLog log) {
  await_consumers();  // the stages are free
  fence_async_shared();
  using Warp = BulkWarp<dtype>;
  std::uint32_t parity = 0;
  const Warp group{{}, block.stages[0] + warp * Warp::kBytes, &block.cells[warp], &parity};
  auto combiner = Combiner<Warp>::helper(call, static_cast<int>(blockIdx.x) * kConsumerWarps + warp);
  log.restart(args);
  run_actor(args, call, group, Actor::combiner, combiner, log, kCombinerPauseNs);
}

/// The end of all roles. __syncthreads() would have to be one place in the code for all threads of the block.
__device__ inline void await_all_roles() { named_barrier<0, kBlockThreads>(); }

/// `kPairs`: blocks are clusters of two and take tasks in pairs.
template <DType dtype, bool kPairs>
__global__ void __launch_bounds__(kBlockThreads, 1)
    moe_kernel(const __grid_constant__ KernelArgs args, const __grid_constant__ TensorMaps maps) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  BlockMemory& block = block_memory();
  constexpr TraceRows rows = kTraceRows;
  if (threadIdx.x == 0) {
    block.init_barriers();
    block.rows.init();
    block.desk.init();
    block.cut_desk.init();
    block.plan_desk.init();
    block.mail.init();
  }
  std::int32_t first_id = -1;
  if (!kPairs && threadIdx.x >= kFirstConsumer * 32) {
    first_id = Opening::prepare(args, block, static_cast<int>(threadIdx.x) - kFirstConsumer * 32);
  }
  begin_trace(args, block.logs);
  load_call(args, block.call, block.traffic, block.gave_up, [&] {
    block.call.given_tickets = kPairs ? 0 : Opening::num_blocks(args, block.call);
    block.ticket = has_given_ticket(block.call) ? given_ticket(block.call) : 0;
  });
  const Call& call = block.call;
  const Fabric fabric(call.heap_base, call.rank, &block.traffic);
  const BlockPair<kPairs> pair(block.mail);
  const bool runs = pair.both_run(may_run(args, call, block.gave_up));

  const int warp = static_cast<int>(threadIdx.x) / 32;
  if (warp < kFirstConsumer) {
    give_up_registers<kServiceRegisters>();
    if (runs && warp < kForemen) {
      run_foreman<kPairs>(args, fabric, block);
    } else if (runs && warp < kFirstLoader) {
      run_service_warp<dtype>(args, call, fabric, static_cast<int>(blockIdx.x) * kServiceWarps + warp - kForemen,
                              WarpLog{block.logs, rows.service(0) - kForemen},
                              WarpLog{block.logs, rows.combiner(0) - kForemen}, SubscriberWarp{{}, &block.desk},
                              SchedulerWarp{{}, &block.cut_desk, call.given_tickets == 0}, DispatcherWarp{});
    } else if (runs) {
      Loader<kPairs>(call, block, maps, warp - kFirstLoader).run();
    }
    await_all_roles();
    pair.part();
    end_trace(args, block.logs);
    leave(args, call, fabric, block.traffic);
  } else {
    take_registers<kConsumerRegisters>();
    if (runs) {
      if (has_scheduler(call)) {
        EarlyCut(call, block, warp - kFirstConsumer).run(!kPairs && args.early_cut, args.state->early_cuts);
      } else if (lends_stages(call)) {
        ListMaker(call, block, warp - kFirstConsumer).serve();
      } else if (EarlyPlan::applies(call)) {
        EarlyPlan(call, block).run();
      } else if (!kPairs && has_given_ticket(call)) {
        Opening(args, call, block, static_cast<int>(threadIdx.x) - kFirstConsumer * 32).run(first_id);
      }
      const bool pushed =
          EarlyPush::applies(call) && EarlyPush(call, fabric, block, warp - kFirstConsumer).run(args.early_push);
      if (!pushed) push_offered_rows(call, fabric, block);
      // Asked for anew: what follows from it does not stay in registers through the tiles.
      Consumer<dtype, kPairs>(call, fabric, args.weights, block, fresh_thread_index() / 32 - kFirstConsumer).run();
      help_combine<dtype>(args, call, block, fresh_thread_index() / 32 - kFirstConsumer,
                          WarpLog{block.logs, rows.helper(0) - kFirstConsumer});
    }
    await_all_roles();
    pair.part();
  }
#else
  __trap();  // chosen for compute capability 9.0 alone
#endif
}

}  // namespace flashmoe::cuda_backend::hopper
