// The kernels by engine and dtype, for host code that g++ compiles. Each kernel is compiled in a file of its own.
#pragma once

#include <cstddef>

#include "actors/local_layout.hpp"
#include "core/geometry.hpp"
#include "cuda/trace_rows.hpp"
#include "flashmoe/group.hpp"
#include "flashmoe/types.hpp"
#include "planner/plan.hpp"

namespace flashmoe::cuda_backend {

using Engine = EngineKind;

/// What a launch needs to know of a kernel, the same of both functions.
struct KernelEntry {
  const void* function;
  const void* pair_function = nullptr;  ///< of blocks in clusters of two, which take tasks in pairs; null: there is none
  std::size_t shared_bytes;  ///< dynamic, of a block
  int threads;               ///< of a block
  int service_warps;         ///< of a block; see roster_of()
  int fewest_blocks;         ///< of a launch
  TraceRows trace_rows;      ///< of a block
};

KernelEntry kernel_entry_bf16();
KernelEntry kernel_entry_fp16();
KernelEntry kernel_entry_tf32();
KernelEntry kernel_entry_fp64();
KernelEntry kernel_entry_hopper_bf16();
KernelEntry kernel_entry_hopper_fp16();
const void* pair_kernel_hopper_bf16();
const void* pair_kernel_hopper_fp16();

/// The kernel of an engine, not automatic, and a dtype. Throws InvalidArgument for fp32, which has no kernel.
KernelEntry kernel_entry(Engine engine, DType dtype);

/// The engine that runs a problem on this machine's GPUs: `wanted`; automatic is hopper wherever it can run (H100, one
/// rank: 1.3 to 2.8 times as fast as portable on every shape of bench/gpu/engine_timing.cpp). Throws InvalidArgument
/// when hopper is wanted and cannot run.
Engine choose_engine(const Problem& problem, Engine wanted = Engine::automatic);

/// Actors a launch of `num_blocks` blocks with `service_warps` each runs. Service warps, counted through all blocks, run the
/// subscribers, one a source where a quarter of the warps is enough for that, then the scheduler, then dispatchers.
Roster roster_of(const Geometry& geometry, int num_blocks, int service_warps);

/// An engine's tile for a problem, and the m-blocks its intermediate ring keeps in L2.
EngineTraits engine_traits(const Problem& problem, Engine wanted = Engine::automatic);

/// The engine that a geometry was planned for: tiles differ.
Engine engine_of(const Geometry& geometry);

}  // namespace flashmoe::cuda_backend
