#include "cuda/cuda_backend.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <utility>
#include <vector>

#include "cuda/caller_memory.hpp"
#include "cuda/device_trace.hpp"
#include "cuda/kernel_table.hpp"
#include "cuda/layer.hpp"
#include "cuda/local_heap.hpp"
#include "cuda/peer_access.hpp"
#include "cuda/repeated_launch.hpp"
#include "cuda/vmm_heap.hpp"
#include "flashmoe/error.hpp"

namespace flashmoe {

namespace {

using cuda_backend::check;
using cuda_backend::DeviceGuard;
using cuda_backend::DeviceMemory;
using cuda_backend::RelaxedCapture;
using cuda_backend::require_gpu_memory;
using cuda_backend::require_row_memory;

int count_devices() {
  int count = 0;
  const cudaError_t result = cudaGetDeviceCount(&count);
  int driver_version = 0;  // stays 0 without a driver, and then the runtime says cudaErrorInsufficientDriver, too
  if (result == cudaErrorInsufficientDriver && cudaDriverGetVersion(&driver_version) == cudaSuccess && driver_version > 0) {
    cudaGetLastError();
    throw CudaError(fmt::format("backend (cuda) needs a driver for CUDA 13.0 or newer, and this machine's is for CUDA {}.{}: "
                                "update the NVIDIA driver, or use backend cpu", driver_version / 1000,
                                driver_version % 1000 / 10));
  }
  if (result != cudaSuccess || count == 0) {
    cudaGetLastError();
    throw CudaError("backend (cuda) needs a GPU, and this machine shows none: check nvidia-smi, or use backend cpu");
  }
  return count;
}

/// Expert parameters of one rank in its GPU's memory.
class UploadedWeights final : public LoadedExperts {
 public:
  UploadedWeights(int device, int rank, const Problem& problem, const ExpertSource& experts)
      : local_experts_(static_cast<std::size_t>(problem.num_local_experts())) {
    const std::size_t element = dtype_bytes(problem.dtype);
    const std::size_t hidden = static_cast<std::size_t>(problem.hidden);
    const std::size_t up_bytes = static_cast<std::size_t>(problem.up_columns()) * hidden * element;
    const std::size_t down_bytes = hidden * static_cast<std::size_t>(problem.intermediate) * element;
    const std::size_t up_bias_bytes = problem.up_bias ? static_cast<std::size_t>(problem.up_columns()) * sizeof(float) : 0;
    const std::size_t down_bias_bytes = problem.down_bias ? hidden * sizeof(float) : 0;
    up_ = DeviceMemory(device, up_bytes * local_experts_);
    down_ = DeviceMemory(device, down_bytes * local_experts_);
    up_bias_ = DeviceMemory(device, up_bias_bytes * local_experts_);
    down_bias_ = DeviceMemory(device, down_bias_bytes * local_experts_);
    const DeviceGuard guard(device);
    for (std::size_t local = 0; local < local_experts_; ++local) {
      const auto expert = experts.expert(rank * problem.num_local_experts() + static_cast<int>(local));
      copy(up_, local, expert->up, up_bytes);
      copy(down_, local, expert->down, down_bytes);
      copy(up_bias_, local, expert->up_bias, up_bias_bytes);
      copy(down_bias_, local, expert->down_bias, down_bias_bytes);
    }
    view_ = {up_.as<void>(), down_.as<void>(), problem.up_bias ? up_bias_.as<float>() : nullptr,
             problem.down_bias ? down_bias_.as<float>() : nullptr};
  }
  const WeightsView& view() const { return view_; }

 private:
  static void copy(DeviceMemory& target, std::size_t index, const void* source, std::size_t bytes) {
    if (bytes > 0) target.upload(index * bytes, source, bytes);
  }

  std::size_t local_experts_;
  DeviceMemory up_, down_, up_bias_, down_bias_;
  WeightsView view_;
};

/// Device buffers for the tensors of a call that lie in host memory. Made with the layer: a running call of another rank
/// on the GPU may wait for this one, so nothing may allocate in between.
struct Staging {
  DeviceMemory x, ids, weights, y;
  Staging(int device, const Problem& problem) {
    const auto tokens = static_cast<std::size_t>(problem.max_tokens);
    const std::size_t rows = tokens * static_cast<std::size_t>(problem.hidden) * dtype_bytes(problem.dtype);
    const std::size_t routes = tokens * static_cast<std::size_t>(problem.top_k) * 4;
    x = DeviceMemory(device, rows);
    y = DeviceMemory(device, rows);
    ids = DeviceMemory(device, routes);
    weights = DeviceMemory(device, routes);
  }
};

/// With weights from a source of host memory, the tensors of its calls lie in host memory too, and calls block.
class CudaLayer final : public RankLayer {
 public:
  CudaLayer(std::shared_ptr<cuda_backend::RankContext> context, const Problem& problem,
            std::shared_ptr<const UploadedWeights> uploaded, const WeightsView& weights, std::uint64_t layer_id)
      : context_(std::move(context)), problem_(problem), uploaded_(std::move(uploaded)),
        layer_(context_, problem, weights, layer_id) {
    const DeviceGuard guard(context_->device());
    if (uploaded_) staging_ = std::make_unique<Staging>(context_->device(), problem);
  }

  CallStats forward(const LayerCall& call, double deadline_seconds) override {
    const std::lock_guard lock(call_mutex_);
    const auto begin = std::chrono::steady_clock::now();
    const DeviceGuard guard(context_->device());
    const cudaStream_t stream = context_->own_stream();
    cuda_backend::CallInput input = place(call, deadline_seconds);
    if (device_trace_) input.trace = device_trace_->target();
    // Calls still running on other streams are not this one's bytes.
    check(cudaStreamWaitEvent(stream, context_->last_launch(), 0), "cudaStreamWaitEvent");
    const cuda_backend::KernelState before = context_->state(stream);
    layer_.forward(input, stream);
    // A copy that waits in its engine's queue for this kernel would hold up those of the ranks that the kernel waits for.
    check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    if (staging_ && call.y.num_rows > 0) {
      check(cudaMemcpyAsync(call.y.data, input.y.data, row_bytes(call), cudaMemcpyDeviceToHost, stream), "cudaMemcpyAsync");
    }
    check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    if (device_trace_) device_trace_->fetch(*trace_, stream);  // of a call that failed, too
    layer_.status();
    const cuda_backend::KernelState after = context_->state(stream);
    const CallPlan plan = layer_.plan(call.max_tokens);
    CallStats stats{.wire_form = plan.wire_form,
                    .result_form = plan.result_form,
                    .epoch = context_->outcome().finished_epochs - 1,
                    .wire_bytes = after.payload_bytes - before.payload_bytes,
                    .wire_overhead_bytes = after.overhead_bytes - before.overhead_bytes,
                    .kernel_launches = 1,
                    .phases = {}};
    stats.phases.wall_us =
        std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
    return stats;
  }

  void enqueue(const LayerCall& call, const StreamCall& where, double deadline_seconds) override {
    if (staging_) {
      throw InvalidArgument("calls on a stream need the layer's weights in GPU memory: make it from a WeightsView");
    }
    const std::lock_guard lock(call_mutex_);
    const DeviceGuard guard(context_->device());
    const RelaxedCapture relaxed;
    require_gpu_memory("num_tokens", where.num_tokens, context_->device());
    cuda_backend::CallInput input = place(call, deadline_seconds);
    input.num_tokens = where.num_tokens;
    layer_.forward(input, static_cast<cudaStream_t>(where.stream));
  }

  void check_calls() const override {
    const RelaxedCapture relaxed;
    layer_.status();
  }

  std::unique_ptr<PreparedCalls> prepare_calls(const LayerCall& call, const Repetition& repetition) override {
    const std::lock_guard lock(call_mutex_);
    const DeviceGuard guard(context_->device());
    cuda_backend::LaunchedCall launched{.context = context_,
                                        .layer = &layer_,
                                        .input = place(call, repetition.deadline_seconds),
                                        .stream = context_->own_stream(),
                                        .host_y = staging_ ? call.y.data : nullptr,
                                        .y_bytes = row_bytes(call),
                                        .after_run = {}};
    if (device_trace_) {
      launched.input.trace = device_trace_->target();
      launched.after_run = [this] { device_trace_->fetch(*trace_, context_->own_stream()); };
    }
    return std::make_unique<cuda_backend::RepeatedLaunch>(std::move(launched), repetition);
  }

  void trace_to(RankTrace* trace) override {
    const std::lock_guard lock(call_mutex_);
    device_trace_.reset();
    trace_ = trace;
    if (trace != nullptr) device_trace_ = std::make_unique<cuda_backend::DeviceTrace>(*context_, trace->capacity);
  }

 private:
  /// The call's tensors in GPU memory, on their way there in the order of the stream where they are not yet.
  cuda_backend::CallInput place(const LayerCall& call, double deadline_seconds) {
    cuda_backend::CallInput input{.x = call.x, .routing = call.routing, .y = call.y, .max_tokens = call.max_tokens,
                                  .num_tokens = nullptr, .deadline_seconds = deadline_seconds};
    if (staging_) {
      upload(call, input);
    } else {
      require_row_memory("x", call.x.data, context_->device());
      require_gpu_memory("topk_ids", call.routing.topk_ids, context_->device());
      require_gpu_memory("topk_weights", call.routing.topk_weights, context_->device());
      require_row_memory("y", call.y.data, context_->device());
    }
    return input;
  }

  std::size_t row_bytes(const LayerCall& call) const {
    return static_cast<std::size_t>(call.x.num_rows) * static_cast<std::size_t>(problem_.hidden) *
           dtype_bytes(problem_.dtype);
  }

  void upload(const LayerCall& call, cuda_backend::CallInput& input) {
    const std::size_t routes = static_cast<std::size_t>(call.x.num_rows) * static_cast<std::size_t>(problem_.top_k) * 4;
    copy_in(staging_->x, call.x.data, row_bytes(call));
    copy_in(staging_->ids, call.routing.topk_ids, routes);
    copy_in(staging_->weights, call.routing.topk_weights, routes);
    input.x.data = staging_->x.as<void>();
    input.routing = {staging_->ids.as<std::int32_t>(), staging_->weights.as<float>()};
    input.y.data = staging_->y.as<void>();
  }
  void copy_in(const DeviceMemory& target, const void* source, std::size_t bytes) {
    if (bytes == 0) return;
    check(cudaMemcpyAsync(target.as<void>(), source, bytes, cudaMemcpyHostToDevice, context_->own_stream()),
          "cudaMemcpyAsync");
  }

  std::shared_ptr<cuda_backend::RankContext> context_;
  Problem problem_;
  std::shared_ptr<const UploadedWeights> uploaded_;  // null where the caller keeps the weights on the GPU
  std::unique_ptr<Staging> staging_;                 // beside uploaded_
  cuda_backend::Layer layer_;
  RankTrace* trace_ = nullptr;
  std::unique_ptr<cuda_backend::DeviceTrace> device_trace_;  // beside trace_
  std::mutex call_mutex_;
};

class CudaHeap final : public SharedHeap {
 public:
  explicit CudaHeap(std::shared_ptr<cuda_backend::DeviceHeap> heap)
      : heap_(std::move(heap)), contexts_(static_cast<std::size_t>(heap_->layout().geometry.num_ranks)) {}

  const HeapLayout& layout() const override { return heap_->layout(); }
  bool dead() const override {
    const std::lock_guard lock(mutex_);
    for (const auto& context : contexts_) {
      if (context && context->outcome().failed != 0) return true;
    }
    return false;
  }

  std::unique_ptr<RankLayer> make_layer(int rank, const Problem& problem, const RankWeights& weights,
                                        std::uint64_t layer_id) override {
    const RelaxedCapture relaxed;
    std::shared_ptr<cuda_backend::RankContext> own = context(rank, problem.dtype);
    std::shared_ptr<const UploadedWeights> uploaded;
    WeightsView view;
    if (const auto* dense = std::get_if<WeightsView>(&weights)) {
      require_row_memory("weights.up", dense->up, own->device());
      require_row_memory("weights.down", dense->down, own->device());
      require_gpu_memory("weights.up_bias", dense->up_bias, own->device());
      require_gpu_memory("weights.down_bias", dense->down_bias, own->device());
      view = *dense;
    } else if (const auto* loaded = std::get_if<std::shared_ptr<const LoadedExperts>>(&weights)) {
      uploaded = std::static_pointer_cast<const UploadedWeights>(*loaded);
      view = uploaded->view();
    } else {
      uploaded = std::make_shared<UploadedWeights>(own->device(), rank, problem,
                                                   *std::get<std::shared_ptr<const ExpertSource>>(weights));
      view = uploaded->view();
    }
    return std::make_unique<CudaLayer>(std::move(own), problem, std::move(uploaded), view, layer_id);
  }

 private:
  std::shared_ptr<cuda_backend::RankContext> context(int rank, DType dtype) {
    const std::lock_guard lock(mutex_);
    auto& context = contexts_[static_cast<std::size_t>(rank)];
    if (!context) {
      context = std::make_shared<cuda_backend::RankContext>(heap_, rank, dtype, cuda_backend::LaunchOptions{});
    }
    return context;
  }

  std::shared_ptr<cuda_backend::DeviceHeap> heap_;
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<cuda_backend::RankContext>> contexts_;  // [num_ranks], null until the rank's first layer
};

class CudaBackend final : public Backend {
 public:
  CudaBackend(const GroupOptions& options, std::optional<int> device)
      : engine_(options.engine), first_device_(options.first_device), device_(device) {}

  int device_of(int rank) const override { return device_ ? *device_ : (first_device_ + rank) % count_devices(); }
  fabric::GpuUuid gpu_uuid(int rank) const override { return cuda_backend::uuid_of(device_of(rank)); }
  std::string engine_name(const Problem& problem) const override {
    return fmt::format("cuda-{}", to_string(cuda_backend::choose_engine(problem, engine_)));
  }
  EngineTraits engine_traits(const Problem& problem) const override {
    cuda_backend::kernel_entry(EngineKind::portable, problem.dtype);  // refuses dtypes without a kernel
    return cuda_backend::engine_traits(problem, engine_);
  }
  std::shared_ptr<const LoadedExperts> load(int rank, const Problem& problem,
                                            std::shared_ptr<const ExpertSource> experts) const override {
    return std::make_shared<UploadedWeights>(device_of(rank), rank, problem, *experts);
  }
  std::size_t local_bytes(const Geometry& geometry) const override {
    const int num_devices = count_devices();
    const int ranks_here = device_ ? 1 : (geometry.num_ranks + num_devices - 1) / num_devices;
    int num_sms = 0;
    check(cudaDeviceGetAttribute(&num_sms, cudaDevAttrMultiProcessorCount, device_of(0)), "cudaDeviceGetAttribute");
    // The same for every dtype of an engine.
    const int service_warps = cuda_backend::kernel_entry(cuda_backend::engine_of(geometry), DType::bf16).service_warps;
    const int num_blocks = std::max(1, num_sms / ranks_here);
    return make_local_layout(geometry, cuda_backend::roster_of(geometry, num_blocks, service_warps)).total_bytes;
  }
  std::shared_ptr<SharedHeap> make_heap(const Geometry& geometry,
                                        std::unique_ptr<fabric::Bootstrap> meeting) const override {
    const RelaxedCapture relaxed;
    if (device_) {
      return std::make_shared<CudaHeap>(std::make_shared<cuda_backend::VmmHeap>(geometry, *device_, std::move(meeting)));
    }
    std::vector<int> devices;
    for (int rank = 0; rank < geometry.num_ranks; ++rank) devices.push_back(device_of(rank));
    return std::make_shared<CudaHeap>(std::make_shared<cuda_backend::LocalHeap>(geometry, std::move(devices)));
  }

 private:
  EngineKind engine_;              // automatic: chosen by problem
  int first_device_;           // of rank 0, where this process has all ranks
  std::optional<int> device_;  // of this process's rank; none: this process has all ranks
};

}  // namespace

void require_cuda_device() {
  const int count = count_devices();
  for (int device = 0; device < count; ++device) {
    int major = 0;
    check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "cudaDeviceGetAttribute");
    if (major < 8) {
      throw CudaError(fmt::format("backend (cuda) needs GPUs of compute capability 8.0 or newer, and GPU {} has {}.x: hide it "
                                  "with CUDA_VISIBLE_DEVICES, or use backend cpu", device, major));
    }
  }
}

void require_device(int device) {
  const int count = count_devices();
  if (device >= 0 && device < count) return;
  throw CudaError(fmt::format("device ({}) must be in 0..{}, the GPUs that this process sees: start fewer ranks, or check "
                              "CUDA_VISIBLE_DEVICES", device, count - 1));
}

std::unique_ptr<Backend> make_cuda_backend(const GroupOptions& options, std::optional<int> device) {
  require_device(device.value_or(options.first_device));
  return std::make_unique<CudaBackend>(options, device);
}

}  // namespace flashmoe
