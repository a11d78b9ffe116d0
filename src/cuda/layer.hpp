// One rank's end of a layer on a GPU: a call is one kernel launch on the caller's stream.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "cuda/device_heap.hpp"
#include "cuda/hopper/tensor_maps.hpp"
#include "cuda/hopper/tile_shape.hpp"
#include "cuda/kernel_args.hpp"
#include "cuda/kernel_table.hpp"
#include "cuda/memory.hpp"
#include "flashmoe/problem.hpp"
#include "flashmoe/views.hpp"
#include "planner/plan.hpp"

namespace flashmoe::cuda_backend {

struct LaunchOptions {
  int num_blocks = 0;              ///< blocks of one rank, or the engine's least; 0: its share of the multiprocessors
  double deadline_seconds = 30.0;
  int flush_after_idle_steps = 100;  ///< see Call: about 0.25 ms
  bool early_push = true;                 ///< engine hopper, for experiments: see hopper/early_push.cuh
  bool early_cut = true;                  ///< the same: see hopper/early_cut.cuh
  int decode_rows = hopper::kDecodeRows;  ///< engine hopper, for experiments: 0 .. hopper::kDecodeRows, see tile_shape.hpp
};

/// What every layer of a rank on one heap shares.
class RankContext {
 public:
  /// `dtype`: of its first layer. Throws CudaError when the blocks of all ranks on the GPU cannot be resident at once.
  RankContext(std::shared_ptr<DeviceHeap> heap, int rank, DType dtype, const LaunchOptions& options);
  /// Waits for the last eager launch.
  ~RankContext();

  DeviceHeap& heap() const { return *heap_; }
  int rank() const { return rank_; }
  int device() const { return heap_->device(rank_); }
  const LaunchOptions& options() const { return options_; }
  int num_blocks() const { return num_blocks_; }
  const Roster& roster() const { return local_layout_.roster; }
  /// Of the engine the heap's geometry was planned for, for layers of `dtype`: those of equal geometry may differ in it.
  /// Throws as the constructor.
  KernelEntry kernel(DType dtype) const;
  /// Of every kernel of the engine.
  const TraceRows& trace_rows() const { return trace_rows_; }
  /// Whether its blocks can run as pairs.
  bool pairs() const { return pairs_; }
  const void* intermediate() const { return local_.as<char>() + local_layout_.intermediate; }
  std::size_t local_bytes() const { return local_layout_.total_bytes; }
  KernelArgs make_args() const;
  /// Throws InvalidArgument where another rank of this GPU has launched the same call on `stream`.
  void note_launch(cudaStream_t stream);
  Outcome& outcome() const { return *outcome_.get(); }
  /// Copied from the device in the order of `stream`, by default one of this thread's.
  KernelState state(cudaStream_t stream = cudaStreamPerThread) const;
  std::mutex& mutex() { return mutex_; }
  /// Recorded after each eager launch: the next one, on any stream, waits for it. Captured calls run where their graph
  /// is launched; two graphs of one heap must not be launched at once.
  cudaEvent_t last_launch() const { return last_launch_.get(); }
  /// For calls that block.
  cudaStream_t own_stream() const { return own_stream_.get(); }

 private:
  int num_multiprocessors() const;
  bool pairs_fit(const KernelEntry& entry) const;

  std::shared_ptr<DeviceHeap> heap_;
  int rank_;
  LaunchOptions options_;
  int num_blocks_ = 0;
  TraceRows trace_rows_{};
  bool pairs_ = false;
  LocalLayout local_layout_;
  DeviceMemory local_;
  DeviceMemory state_;
  PinnedHost<Outcome> outcome_;
  OwnedEvent last_launch_;
  OwnedStream own_stream_;
  std::mutex mutex_;
};

/// One rank's tensors of one call, in memory its GPU can read and write.
struct CallInput {
  ConstRows x;
  RoutingView routing;
  Rows y;
  std::int64_t max_tokens = 0;                   ///< host value, the same on all ranks, fixed at capture
  const std::int64_t* num_tokens = nullptr;      ///< device memory; null: x.num_rows
  double deadline_seconds = 0;                   ///< 0: the rank's
  TraceTarget trace{};
};

class Layer {
 public:
  /// weights: device memory, alive as long as the layer. `problem` has passed validate().
  Layer(std::shared_ptr<RankContext> context, const Problem& problem, const WeightsView& weights,
        std::uint64_t layer_id);

  /// Launches the call; returns at once. Raises what an earlier call of this rank ended with. Capturable. Calls of all
  /// layers of the heap run one after another, whatever their streams.
  void forward(const CallInput& input, cudaStream_t stream);

  /// Throws what the latest finished call ended with; does not wait.
  void status() const;

  CallPlan plan(std::int64_t max_tokens) const;

 private:
  std::shared_ptr<RankContext> context_;
  Problem problem_;
  WeightsView weights_;
  std::uint64_t layer_id_;
  KernelEntry kernel_;
  hopper::TensorMaps maps_{};  ///< Hopper engine
};

}  // namespace flashmoe::cuda_backend
