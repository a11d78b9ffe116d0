#include "cuda/kernel_table.hpp"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>

#include "core/arena.hpp"
#include "cuda/hopper/tile_shape.hpp"
#include "cuda/tile_shape.hpp"
#include "flashmoe/error.hpp"

namespace flashmoe::cuda_backend {

namespace {

/// True when every GPU of this machine is of compute capability 9.0 and large enough for its share of `num_ranks`.
bool all_hopper(int num_ranks) {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
    cudaGetLastError();
    return false;
  }
  const int fewest_blocks = (num_ranks + count - 1) / count * hopper::kFewestBlocks;
  for (int device = 0; device < count; ++device) {
    int major = 0;
    int minor = 0;
    int num_sms = 0;
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
    cudaDeviceGetAttribute(&num_sms, cudaDevAttrMultiProcessorCount, device);
    if (major != 9 || minor != 0 || num_sms < fewest_blocks) return false;
  }
  return true;
}

bool has_hopper_kernel(DType dtype) { return dtype == DType::bf16 || dtype == DType::fp16; }

/// M-blocks of the intermediate ring: what fits `ring_bytes`, but enough for processors to find tasks while the down
/// tiles of others run.
int ring_blocks(const Problem& problem, const TileShape& tile, std::int64_t ring_bytes) {
  constexpr int kTasksInFlight = 4 * 132;
  const std::int64_t block_bytes =
      std::int64_t{tile.most_rows()} * problem.intermediate * static_cast<std::int64_t>(dtype_bytes(problem.dtype));
  const std::int64_t up_tasks = ceil_div(problem.intermediate, tile.up_columns * tile.up_tiles_at_once);
  const std::int64_t down_tasks = ceil_div(problem.hidden, tile.down_columns * tile.down_tiles_at_once);
  const std::int64_t needed = ceil_div(kTasksInFlight, std::min(up_tasks, down_tasks));
  return static_cast<int>(std::clamp<std::int64_t>(std::max(ring_bytes / block_bytes, needed), 32, 512));
}

}  // namespace

KernelEntry kernel_entry(Engine engine, DType dtype) {
  const bool hopper = engine == Engine::hopper;
  switch (dtype) {
    case DType::bf16: return hopper ? kernel_entry_hopper_bf16() : kernel_entry_bf16();
    case DType::fp16: return hopper ? kernel_entry_hopper_fp16() : kernel_entry_fp16();
    case DType::tf32: return kernel_entry_tf32();
    case DType::fp64: return kernel_entry_fp64();
    case DType::fp32: break;
  }
  throw InvalidArgument("dtype fp32 runs on the cpu backend only: use tf32, which keeps fp32 storage, or backend cpu");
}

Roster roster_of(const Geometry& geometry, int num_blocks, int service_warps) {
  const int all = service_warps * num_blocks;
  const int subscribers = std::min(geometry.num_ranks, std::max(all / 4, 1));
  const bool on_hopper = engine_of(geometry) == Engine::hopper;
  return {.num_dispatchers = all - subscribers - 1,
          .num_processors = num_blocks,
          .num_subscribers = subscribers,
          .num_helpers = on_hopper ? hopper::kConsumerWarps * num_blocks : 0};
}

Engine choose_engine(const Problem& problem, Engine wanted) {
  const bool runs = has_hopper_kernel(problem.dtype) && all_hopper(problem.num_ranks);
  if (wanted == Engine::hopper && !runs) {
    throw InvalidArgument(fmt::format("engine hopper needs dtype bf16 or fp16 and GPUs of compute capability 9.0 with "
                                      "{} multiprocessors a rank, got dtype {} and {} ranks on this machine's GPUs: use "
                                      "engine auto",
                                      hopper::kFewestBlocks, to_string(problem.dtype), problem.num_ranks));
  }
  return runs && wanted != Engine::portable ? Engine::hopper : Engine::portable;
}

EngineTraits engine_traits(const Problem& problem, Engine wanted) {
  const bool hopper = choose_engine(problem, wanted) == Engine::hopper;
  const TileShape tile = hopper ? hopper::tile_shape(problem.gated) : tile_shape(problem.gated);
  return {.tile = tile,
          .num_m_blocks = ring_blocks(problem, tile, hopper ? 32 << 20 : 16 << 20),
          .listed_routes = hopper ? hopper::listed_routes(problem.num_ranks, problem.num_local_experts()) : 0};
}

Engine engine_of(const Geometry& geometry) {
  return geometry.tile.rows == hopper::kTileRows ? Engine::hopper : Engine::portable;
}

}  // namespace flashmoe::cuda_backend
