// All ranks of a group on the CUDA backend in one process, one stream a rank: what a conformance test drives.
#pragma once

#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "cuda/kernel_table.hpp"
#include "cuda/layer.hpp"
#include "cuda/local_heap.hpp"
#include "support/batch.hpp"
#include "support/uploaded.hpp"

namespace flashmoe::test {

class CudaWorld {
 public:
  /// Rank r runs on GPU r % num_devices.
  CudaWorld(const Problem& problem, std::shared_ptr<const ExpertSource> experts,
            const cuda_backend::LaunchOptions& options = {.deadline_seconds = 5.0}, int num_devices = 1)
      : problem_(problem) {
    std::vector<int> devices;
    for (int rank = 0; rank < problem.num_ranks; ++rank) devices.push_back(rank % num_devices);
    heap_ = std::make_shared<cuda_backend::LocalHeap>(
        plan_geometry(problem, cuda_backend::engine_traits(problem)), devices);
    for (int rank = 0; rank < problem.num_ranks; ++rank) {
      contexts_.push_back(std::make_shared<cuda_backend::RankContext>(heap_, rank, problem.dtype, options));
      const cuda_backend::DeviceGuard guard(devices[static_cast<std::size_t>(rank)]);
      weights_.emplace_back(devices[static_cast<std::size_t>(rank)], problem, *experts, rank);
      layers_.push_back(std::make_unique<cuda_backend::Layer>(contexts_.back(), problem, weights_.back().view(), 1));
      cudaStream_t stream;
      cuda_backend::check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
      streams_.push_back(stream);
    }
  }
  ~CudaWorld() {
    for (std::size_t rank = 0; rank < streams_.size(); ++rank) {
      const cuda_backend::DeviceGuard guard(contexts_[rank]->device());
      cudaStreamDestroy(streams_[rank]);
    }
  }
  CudaWorld(const CudaWorld&) = delete;
  CudaWorld& operator=(const CudaWorld&) = delete;

  /// Runs one call; entry r is rank r's batch, null where the rank never enters. See errors().
  void call(const std::vector<Batch*>& batches, std::int64_t max_tokens) {
    errors_.assign(batches.size(), nullptr);
    std::vector<Uploaded> uploaded;
    for (std::size_t rank = 0; rank < batches.size(); ++rank) {
      heap_->poison(static_cast<int>(rank), 0xff);
      uploaded.push_back(batches[rank] != nullptr ? upload(rank, *batches[rank]) : Uploaded{});
    }
    synchronize_all();
    for (std::size_t rank = 0; rank < batches.size(); ++rank) {
      if (batches[rank] == nullptr) continue;
      guarded(rank, [&] {
        layers_[rank]->forward({.x = {uploaded[rank].x.as(), batches[rank]->num_tokens},
                                .routing = {uploaded[rank].ids.as<std::int32_t>(), uploaded[rank].weights.as<float>()},
                                .y = {uploaded[rank].y.as(), batches[rank]->num_tokens},
                                .max_tokens = max_tokens},
                               streams_[rank]);
      });
    }
    for (std::size_t rank = 0; rank < batches.size(); ++rank) {
      if (batches[rank] == nullptr) continue;
      const cuda_backend::DeviceGuard guard(contexts_[rank]->device());
      guarded(rank, [&] {
        cuda_backend::check(cudaStreamSynchronize(streams_[rank]), "cudaStreamSynchronize");
        cuda_backend::check(cudaMemcpy(batches[rank]->y.data(), uploaded[rank].y.as(), batches[rank]->y.size(),
                                       cudaMemcpyDeviceToHost),
                            "cudaMemcpy");
      });
    }
    for (std::size_t rank = 0; rank < batches.size(); ++rank) {
      if (batches[rank] != nullptr && !errors_[rank]) guarded(rank, [&] { layers_[rank]->status(); });
    }
  }

  std::string message(std::size_t rank) const {
    if (!errors_[rank]) return {};
    try {
      std::rethrow_exception(errors_[rank]);
    } catch (const std::exception& error) {
      return error.what();
    }
  }
  cuda_backend::RankContext& context(std::size_t rank) { return *contexts_[rank]; }
  cuda_backend::Layer& layer(std::size_t rank) { return *layers_[rank]; }
  cudaStream_t stream(std::size_t rank) { return streams_[rank]; }

  /// A copy of a rank's heap.
  std::vector<char> read_heap(std::size_t rank) {
    const cuda_backend::DeviceGuard guard(contexts_[rank]->device());
    std::vector<char> bytes(heap_->layout().total_bytes);
    cuda_backend::check(cudaMemcpy(bytes.data(), heap_->base(static_cast<int>(rank)), bytes.size(), cudaMemcpyDeviceToHost),
                        "cudaMemcpy");
    return bytes;
  }
  const HeapLayout& layout() const { return heap_->layout(); }

  using Uploaded = UploadedBatch;
  Uploaded upload(std::size_t rank, const Batch& batch) { return UploadedBatch(contexts_[rank]->device(), batch); }
  void synchronize_all() {
    for (const auto& context : contexts_) {
      const cuda_backend::DeviceGuard guard(context->device());
      cuda_backend::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    }
  }

 private:
  template <class Function>
  void guarded(std::size_t rank, const Function& function) {
    try {
      function();
    } catch (...) {
      errors_[rank] = std::current_exception();
    }
  }

  Problem problem_;
  std::shared_ptr<cuda_backend::LocalHeap> heap_;
  std::vector<std::shared_ptr<cuda_backend::RankContext>> contexts_;
  std::vector<std::unique_ptr<cuda_backend::Layer>> layers_;
  std::vector<UploadedWeights> weights_;
  std::vector<cudaStream_t> streams_;
  std::vector<std::exception_ptr> errors_;
};

}  // namespace flashmoe::test
