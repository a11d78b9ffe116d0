#include "cuda/kernel_table.hpp"

#include <algorithm>

#include "cuda/tile_shape.hpp"
#include "flashmoe/error.hpp"

namespace flashmoe::cuda_backend {

KernelEntry kernel_entry(DType dtype) {
  switch (dtype) {
    case DType::bf16: return kernel_entry_bf16();
    case DType::fp16: return kernel_entry_fp16();
    case DType::tf32: return kernel_entry_tf32();
    case DType::fp64: return kernel_entry_fp64();
    case DType::fp32: break;
  }
  throw InvalidArgument("dtype fp32 runs on the cpu backend only: use tf32, which keeps fp32 storage, or backend cpu");
}

EngineTraits engine_traits(const Problem& problem) {
  constexpr std::int64_t kRingBytes = 16 << 20;
  const std::int64_t block_bytes =
      std::int64_t{kTileRows} * problem.intermediate * static_cast<std::int64_t>(dtype_bytes(problem.dtype));
  return {.tile = {.rows = kTileRows,
                   .up_columns = problem.gated ? kTileColumns / 2 : kTileColumns,
                   .down_columns = kTileColumns},
          .num_m_blocks = static_cast<int>(std::clamp<std::int64_t>(kRingBytes / block_bytes, 32, 512))};
}

}  // namespace flashmoe::cuda_backend
