// The portable kernel: one launch is one rank's epoch, dispatch to combine. Every block runs one processor and, on its
// service warps, dispatchers with their combiners; the first ones run the subscribers and the scheduler.
#pragma once

#include "actors/processor.hpp"
#include "cuda/kernel_args.hpp"
#include "cuda/service.cuh"
#include "cuda/tile_engine.cuh"
#include "cuda/tracing.cuh"

namespace flashmoe::cuda_backend {

/// A block's shared memory.
struct BlockMemory {
  TileMemory tile;
  alignas(16) Call call;
  alignas(8) char broadcast[ProcessorGroup::kScratchBytes];
  Traffic traffic;
  bool gave_up;
  TraceLog logs[kTraceRows.total()];
};

template <DType dtype>
__global__ void __launch_bounds__(kBlockThreads, 1) moe_kernel(const __grid_constant__ KernelArgs args) {
  extern __shared__ __align__(128) char shared[];
  BlockMemory& block = *reinterpret_cast<BlockMemory*>(shared);
  constexpr TraceRows rows = kTraceRows;
  begin_trace(args, block.logs);
  load_call(args, block.call, block.traffic, block.gave_up, [] {});
  const Call& call = block.call;
  const Fabric fabric(call.heap_base, call.rank, &block.traffic);

  const bool runs = may_run(args, call, block.gave_up);
  if (runs && threadIdx.x < ProcessorGroup::kThreads) {
    const ProcessorGroup group{block.broadcast};
    TileEngine<dtype> engine(block.tile, args.weights);
    Processor<ProcessorGroup, Fabric, TileEngine<dtype>> processor(call, fabric, engine);
    run_actor(args, call, group, Actor::processor, processor, WarpLog{block.logs, 0});
  } else if (runs) {
    const int warp = static_cast<int>(threadIdx.x) / 32 - kProcessorWarps;
    run_service_warp<dtype>(args, call, fabric, static_cast<int>(blockIdx.x) * kServiceWarps + warp,
                            WarpLog{block.logs, rows.service(0) - kProcessorWarps},
                            WarpLog{block.logs, rows.combiner(0) - kProcessorWarps});
  }
  __syncthreads();
  end_trace(args, block.logs);
  leave(args, call, fabric, block.traffic);
}

}  // namespace flashmoe::cuda_backend
