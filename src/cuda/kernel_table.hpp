// The kernels by dtype, for host code that g++ compiles. Each kernel is compiled in a file of its own.
#pragma once

#include <cstddef>

#include "flashmoe/types.hpp"
#include "planner/plan.hpp"

namespace flashmoe::cuda_backend {

/// The kernel of a dtype and the dynamic shared memory of its blocks.
struct KernelEntry {
  const void* function;
  std::size_t shared_bytes;
};

KernelEntry kernel_entry_bf16();
KernelEntry kernel_entry_fp16();
KernelEntry kernel_entry_tf32();
KernelEntry kernel_entry_fp64();

/// Throws InvalidArgument for fp32, which has no kernel.
KernelEntry kernel_entry(DType dtype);

/// The portable engine's tile for a problem, and the m-blocks its intermediate ring keeps in L2.
EngineTraits engine_traits(const Problem& problem);

}  // namespace flashmoe::cuda_backend
