// One rank of a group of processes on the CUDA backend: its end of a layer on a heap that it shares with the others.
#pragma once

#include <memory>
#include <string>

#include "cuda/kernel_table.hpp"
#include "cuda/layer.hpp"
#include "cuda/vmm_heap.hpp"
#include "planner/plan.hpp"
#include "support/uploaded.hpp"

namespace flashmoe::test {

class VmmRank {
 public:
  /// Collective over the processes of `group_id`.
  VmmRank(const std::string& group_id, int rank, int device, const Problem& problem, const ExpertSource& experts,
          double deadline_seconds)
      : problem_(problem), device_(device), weights_(device, problem, experts, rank) {
    auto meeting = std::make_unique<fabric::Bootstrap>(group_id, rank, problem.num_ranks, kMeetingSeconds);
    heap_ = std::make_shared<cuda_backend::VmmHeap>(plan_geometry(problem, cuda_backend::engine_traits(problem)), device,
                                                    std::move(meeting));
    context_ = std::make_shared<cuda_backend::RankContext>(
        heap_, rank, problem.dtype, cuda_backend::LaunchOptions{.deadline_seconds = deadline_seconds});
    layer_ = std::make_unique<cuda_backend::Layer>(context_, problem, weights_.view(), 1);
  }

  /// Runs one call to its end and fills batch.y; throws what the call ends with.
  void call(Batch& batch, std::int64_t max_tokens) {
    const cuda_backend::DeviceGuard guard(device_);
    const UploadedBatch uploaded(device_, batch);
    layer_->forward({.x = {uploaded.x.as(), batch.num_tokens},
                     .routing = {uploaded.ids.as<std::int32_t>(), uploaded.weights.as<float>()},
                     .y = {uploaded.y.as(), batch.num_tokens},
                     .max_tokens = max_tokens},
                    cudaStreamPerThread);
    cuda_backend::check(cudaStreamSynchronize(cudaStreamPerThread), "cudaStreamSynchronize");
    layer_->status();
    cuda_backend::check(cudaMemcpy(batch.y.data(), uploaded.y.as(), batch.y.size(), cudaMemcpyDeviceToHost), "cudaMemcpy");
  }

  cuda_backend::VmmHeap& heap() { return *heap_; }

  static constexpr double kMeetingSeconds = 60.0;

 private:
  Problem problem_;
  int device_;
  UploadedWeights weights_;
  std::shared_ptr<cuda_backend::VmmHeap> heap_;
  std::shared_ptr<cuda_backend::RankContext> context_;
  std::unique_ptr<cuda_backend::Layer> layer_;
};

}  // namespace flashmoe::test
