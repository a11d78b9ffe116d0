#include "cuda/hopper/router_launch.hpp"

#include <map>
#include <mutex>

#include "cuda/check.hpp"
#include "cuda/cluster_launch.hpp"
#include "cuda/hopper/router_shape.hpp"
#include "cuda/hopper/tensor_maps.hpp"

namespace flashmoe::cuda_backend::hopper {

namespace {

int attribute(cudaDeviceAttr what, int device) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, what, device), "cudaDeviceGetAttribute");
  return value;
}

RouterKernel kernel_of(DType dtype, int rows) {
  return dtype == DType::bf16 ? router_kernel_bf16(rows) : router_kernel_fp16(rows);
}

void prepare(const RouterKernel& kernel) {
  check(cudaFuncSetAttribute(kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(kernel.shared_bytes)),
        "cudaFuncSetAttribute");
  check(cudaFuncSetAttribute(kernel.function, cudaFuncAttributeNonPortableClusterSizeAllowed, 1), "cudaFuncSetAttribute");
}

struct Machine {
  bool is_hopper;
  ClusterRoom room;  ///< for tall tiles; blocks of any height fill a multiprocessor

  explicit Machine(int device)
      : is_hopper(attribute(cudaDevAttrComputeCapabilityMajor, device) == 9 &&
                  attribute(cudaDevAttrComputeCapabilityMinor, device) == 0) {
    if (!is_hopper) return;
    const RouterKernel kernel = kernel_of(DType::bf16, kTallTile);
    prepare(kernel);
    room.num_clusters[0] = attribute(cudaDevAttrMultiProcessorCount, device);
    for (std::size_t i = 1; i < room.num_clusters.size(); ++i) {
      const ClusterLaunch launch(1, 1 << i, kRouterThreads, kernel.shared_bytes, nullptr);
      check(cudaOccupancyMaxActiveClusters(&room.num_clusters[i], kernel.function, &launch.config),
            "cudaOccupancyMaxActiveClusters");
    }
  }
};

/// Asked for once a device: what it says does not change, and every launch needs it.
const Machine& machine_of(int device) {
  static std::mutex mutex;
  static std::map<int, Machine> machines;
  const std::lock_guard lock(mutex);
  return machines.try_emplace(device, device).first->second;
}

}  // namespace

bool launch_router(DType dtype, const RouterArgs& args, cudaStream_t stream) {
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  const Machine& machine = machine_of(device);
  if (!machine.is_hopper) return false;
  const RouterGrid grid = router_grid(args.max_tokens, args.num_experts, machine.room);
  if (grid.splits == 0) return false;
  const RouterKernel kernel = kernel_of(dtype, grid.rows);
  prepare(kernel);
  RouterArgs rules = args;
  RouterGrid layout = grid;
  RouterMaps maps{.gate = make_tensor_map(dtype, args.gate, args.num_experts, args.hidden, gate_box(args.num_experts)),
                  .x = make_tensor_map(dtype, args.x, args.max_tokens, args.hidden, grid.rows)};
  const ClusterLaunch launch(grid.num_tiles, grid.cluster(), kRouterThreads, kernel.shared_bytes, stream);
  void* parameters[] = {&rules, &layout, &maps};
  check(cudaLaunchKernelExC(&launch.config, kernel.function, parameters), "cudaLaunchKernelExC");
  return true;
}

}  // namespace flashmoe::cuda_backend::hopper
