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
      layers_.push_back(std::make_unique<cuda_backend::Layer>(contexts_.back(), problem, upload_weights(rank, *experts), 1));
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

  struct Uploaded {
    cuda_backend::DeviceMemory x, y, ids, weights;
  };
  Uploaded upload(std::size_t rank, const Batch& batch) {
    const int device = contexts_[rank]->device();
    return {put(device, batch.x.data(), batch.x.size()), put(device, batch.y.data(), batch.y.size()),
            put(device, batch.topk_ids.data(), batch.topk_ids.size() * 4),
            put(device, batch.topk_weights.data(), batch.topk_weights.size() * 4)};
  }
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

  static cuda_backend::DeviceMemory put(int device, const void* data, std::size_t bytes) {
    cuda_backend::DeviceMemory memory(device, bytes);
    const cuda_backend::DeviceGuard guard(device);
    if (bytes > 0) cuda_backend::check(cudaMemcpy(memory.as(), data, bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
    return memory;
  }

  WeightsView upload_weights(int rank, const ExpertSource& experts) {
    const std::size_t element = dtype_bytes(problem_.dtype);
    const std::size_t up = static_cast<std::size_t>(problem_.up_columns()) * static_cast<std::size_t>(problem_.hidden) * element;
    const std::size_t down = static_cast<std::size_t>(problem_.hidden) * static_cast<std::size_t>(problem_.intermediate) * element;
    std::vector<char> ups, downs;
    std::vector<float> up_biases, down_biases;
    for (int local = 0; local < problem_.num_local_experts(); ++local) {
      const auto expert = experts.expert(rank * problem_.num_local_experts() + local);
      ups.insert(ups.end(), static_cast<const char*>(expert->up), static_cast<const char*>(expert->up) + up);
      downs.insert(downs.end(), static_cast<const char*>(expert->down), static_cast<const char*>(expert->down) + down);
      if (problem_.up_bias) up_biases.insert(up_biases.end(), expert->up_bias, expert->up_bias + problem_.up_columns());
      if (problem_.down_bias) down_biases.insert(down_biases.end(), expert->down_bias, expert->down_bias + problem_.hidden);
    }
    const int device = contexts_[static_cast<std::size_t>(rank)]->device();
    weights_.push_back(put(device, ups.data(), ups.size()));
    const void* up_data = weights_.back().as();
    weights_.push_back(put(device, downs.data(), downs.size()));
    const void* down_data = weights_.back().as();
    weights_.push_back(put(device, up_biases.data(), up_biases.size() * 4));
    const float* up_bias = problem_.up_bias ? weights_.back().as<float>() : nullptr;
    weights_.push_back(put(device, down_biases.data(), down_biases.size() * 4));
    const float* down_bias = problem_.down_bias ? weights_.back().as<float>() : nullptr;
    return {up_data, down_data, up_bias, down_bias};
  }

  Problem problem_;
  std::shared_ptr<cuda_backend::LocalHeap> heap_;
  std::vector<std::shared_ptr<cuda_backend::RankContext>> contexts_;
  std::vector<std::unique_ptr<cuda_backend::Layer>> layers_;
  std::vector<cuda_backend::DeviceMemory> weights_;
  std::vector<cudaStream_t> streams_;
  std::vector<std::exception_ptr> errors_;
};

}  // namespace flashmoe::test
