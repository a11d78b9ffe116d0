#include <fmt/format.h>

#include <algorithm>

#include "cuda/check.hpp"
#include "cuda/cluster_launch.hpp"
#include "cuda/hopper/router_launch.hpp"
#include "cuda/router_args.hpp"
#include "cuda/router_variants.hpp"

namespace flashmoe::cuda_backend {

namespace {

constexpr int kFewTokens = 256;  // tiles of 16 rows: the gate is most of what is read

int attribute(cudaDeviceAttr what) {
  int device = 0;
  int value = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&value, what, device), "cudaDeviceGetAttribute");
  return value;
}

RouterVariants variants_of(DType dtype) {
  switch (dtype) {
    case DType::bf16: return router_variants_bf16();
    case DType::fp16: return router_variants_fp16();
    case DType::tf32:
    case DType::fp32: return router_variants_fp32();
    case DType::fp64: break;
  }
  throw InvalidArgument("the router of backend cuda takes x in bf16, fp16 or fp32, got fp64: convert it, or use backend cpu");
}

const RouterVariant& choose(const RouterVariants& variants, const RouterArgs& args) {
  const int tallest = args.max_tokens <= kFewTokens ? 16 : variants.front().rows;
  const int room = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  for (const RouterVariant& variant : variants) {
    if (variant.rows <= tallest && variant.shared_bytes(args.num_experts) <= room) return variant;
  }
  throw CudaError(fmt::format("a router of {} experts needs {} bytes of shared memory a block, and this GPU has {}: use "
                              "backend cpu",
                              args.num_experts, variants.back().shared_bytes(args.num_experts), room));
}

/// Blocks that share a tile: one where tiles alone fill half the machine, or where the code that would run (it is compiled
/// for several generations) knows no clusters; else as many as can be placed at once.
int cluster_size(const RouterVariant& variant, int shared_bytes, std::int64_t num_tiles) {
  cudaFuncAttributes attributes;
  check(cudaFuncGetAttributes(&attributes, variant.function), "cudaFuncGetAttributes");
  const int num_sms = attribute(cudaDevAttrMultiProcessorCount);
  if (attributes.ptxVersion < 90 || num_tiles * 4 > num_sms) return 1;
  constexpr int portable = 8;
  constexpr int wide = 16;
  if (num_tiles * wide > num_sms) return portable;
  check(cudaFuncSetAttribute(variant.function, cudaFuncAttributeNonPortableClusterSizeAllowed, 1), "cudaFuncSetAttribute");
  const ClusterLaunch launch(1, wide, kRouterThreads, static_cast<std::size_t>(shared_bytes), nullptr);
  int num_clusters = 0;
  check(cudaOccupancyMaxActiveClusters(&num_clusters, variant.function, &launch.config), "cudaOccupancyMaxActiveClusters");
  return num_clusters >= num_tiles ? wide : portable;
}

void launch_given_logits(const RouterArgs& args, cudaStream_t stream) {
  constexpr int num_warps = kGivenLogitsThreads / 32;
  const auto shared_bytes = static_cast<std::size_t>(num_warps * given_logits_words(args.num_experts)) * sizeof(float);
  const void* kernel = given_logits_kernel();
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes)),
        "cudaFuncSetAttribute");
  const std::int64_t blocks = std::min<std::int64_t>((args.max_tokens + num_warps - 1) / num_warps,
                                                     4 * attribute(cudaDevAttrMultiProcessorCount));
  RouterArgs copy = args;
  void* parameters[] = {&copy};
  check(cudaLaunchKernel(kernel, dim3(static_cast<unsigned>(blocks)), dim3(kGivenLogitsThreads), parameters, shared_bytes,
                         stream),
        "cudaLaunchKernel");
}

}  // namespace

void launch_router(DType dtype, const RouterArgs& args, cudaStream_t stream) {
  if (args.max_tokens == 0) return;
  if (args.given_logits != nullptr) return launch_given_logits(args, stream);
  const bool is_half = dtype == DType::bf16 || dtype == DType::fp16;
  if (is_half && hopper::launch_router(dtype, args, stream)) return;
  const RouterVariants variants = variants_of(dtype);
  const RouterVariant& variant = choose(variants, args);
  const int shared_bytes = variant.shared_bytes(args.num_experts);
  check(cudaFuncSetAttribute(variant.function, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes),
        "cudaFuncSetAttribute");
  const std::int64_t num_tiles = (args.max_tokens + variant.rows - 1) / variant.rows;
  const int blocks_a_tile = cluster_size(variant, shared_bytes, num_tiles);
  const ClusterLaunch launch(num_tiles, blocks_a_tile, kRouterThreads, static_cast<std::size_t>(shared_bytes), stream);
  RouterArgs copy = args;
  void* parameters[] = {&copy};
  check(cudaLaunchKernelExC(&launch.config, variant.function, parameters), "cudaLaunchKernelExC");
}

}  // namespace flashmoe::cuda_backend
