// A kernel launch in clusters of blocks.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace flashmoe::cuda_backend {

/// A launch configuration with the attribute that it points to. Clusters of one block are no clusters.
struct ClusterLaunch {
  cudaLaunchAttribute cluster{};
  cudaLaunchConfig_t config{};

  /// `shared_bytes`: dynamic, of a block.
  ClusterLaunch(std::int64_t num_clusters, int cluster_blocks, int threads, std::size_t shared_bytes, cudaStream_t stream) {
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {static_cast<unsigned>(cluster_blocks), 1, 1};
    config.gridDim = dim3(static_cast<unsigned>(num_clusters * cluster_blocks));
    config.blockDim = dim3(static_cast<unsigned>(threads));
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    config.attrs = &cluster;
    config.numAttrs = cluster_blocks > 1 ? 1 : 0;
  }
  ClusterLaunch(const ClusterLaunch&) = delete;
  ClusterLaunch& operator=(const ClusterLaunch&) = delete;
};

}  // namespace flashmoe::cuda_backend
