#include "cuda/layer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "actors/stall.hpp"
#include "cuda/caller_memory.hpp"
#include "cuda/cluster_launch.hpp"
#include "cuda/kernel_table.hpp"
#include "flashmoe/error.hpp"

namespace flashmoe::cuda_backend {

RankContext::RankContext(std::shared_ptr<DeviceHeap> heap, int rank, DType dtype, const LaunchOptions& options)
    : heap_(std::move(heap)), rank_(rank), options_(options) {
  if (options.decode_rows < 0 || options.decode_rows > hopper::kDecodeRows) {
    throw InvalidArgument(
        fmt::format("decode_rows must be in 0..{}, got {}: rows of an expert that a decode tile holds",
                    hopper::kDecodeRows, options.decode_rows));
  }
  const DeviceGuard guard(device());
  const KernelEntry entry = kernel_entry(engine_of(heap_->layout().geometry), dtype);
  num_blocks_ = std::max(options.num_blocks > 0 ? options.num_blocks : num_multiprocessors() / heap_->num_ranks_beside(rank),
                         entry.fewest_blocks);
  trace_rows_ = entry.trace_rows;
  pairs_ = pairs_fit(kernel(dtype));  // which refuses blocks that cannot all be resident, before memory is taken
  const Geometry& geometry = heap_->layout().geometry;
  local_layout_ = make_local_layout(geometry, roster_of(geometry, num_blocks_, entry.service_warps));
  local_ = DeviceMemory(device(), local_layout_.total_bytes);
  state_ = DeviceMemory(device(), sizeof(KernelState));
  last_launch_.create();
  own_stream_.create();
  const std::vector<MBlock> blocks(static_cast<std::size_t>(local_layout_.geometry.num_m_blocks));
  local_.upload(local_layout_.m_blocks, blocks.data(), blocks.size() * sizeof(MBlock));
}

RankContext::~RankContext() {
  const RelaxedCapture relaxed;
  cudaEventSynchronize(last_launch());
}

int RankContext::num_multiprocessors() const {
  int count = 0;
  check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device()), "cudaDeviceGetAttribute");
  return count;
}

KernelEntry RankContext::kernel(DType dtype) const {
  const DeviceGuard guard(device());
  const KernelEntry entry = kernel_entry(engine_of(heap_->layout().geometry), dtype);
  for (const void* function : {entry.function, entry.pair_function}) {
    if (function == nullptr) continue;
    check(cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(entry.shared_bytes)),
          "cudaFuncSetAttribute");
  }
  int blocks_each = 0;
  check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks_each, entry.function, entry.threads, entry.shared_bytes),
        "cudaOccupancyMaxActiveBlocksPerMultiprocessor");
  const int num_sms = num_multiprocessors();
  const int ranks_here = heap_->num_ranks_beside(rank_);
  if (num_blocks_ < 1 || num_blocks_ * ranks_here > blocks_each * num_sms) {
    throw CudaError(fmt::format("{} blocks of each of {} ranks on GPU {} cannot all be resident ({} multiprocessors hold "
                                "{} blocks each): use fewer blocks or fewer ranks a GPU",
                                num_blocks_, ranks_here, device(), num_sms, blocks_each));
  }
  return entry;
}

/// All ranks of a GPU launch pairs or none do, as they have equal geometries and shares: blocks of one that stood alone could
/// leave no room for another's.
bool RankContext::pairs_fit(const KernelEntry& entry) const {
  if (entry.pair_function == nullptr || num_blocks_ % 2 != 0) return false;
  const DeviceGuard guard(device());
  const ClusterLaunch launch(num_blocks_ / 2, 2, entry.threads, entry.shared_bytes, nullptr);
  int num_pairs = 0;
  check(cudaOccupancyMaxActiveClusters(&num_pairs, entry.pair_function, &launch.config), "cudaOccupancyMaxActiveClusters");
  return num_blocks_ * heap_->num_ranks_beside(rank_) <= 2 * num_pairs;
}

void RankContext::note_launch(cudaStream_t stream) {
  // Null and cudaStreamLegacy name one stream, cudaStreamPerThread as many as there are threads.
  const void* named = stream == cudaStreamPerThread ? nullptr : stream == nullptr ? cudaStreamLegacy : stream;
  heap_->launch_streams().note(rank_, device(), named);
}

KernelArgs RankContext::make_args() const {
  KernelArgs args;
  Call& call = args.call;
  call.heap = heap_->layout();
  call.local_layout = local_layout_;
  for (int rank = 0; rank < call.geometry().num_ranks; ++rank) call.heap_base[rank] = heap_->base(rank);
  call.local = local_.as<char>();
  call.rank = rank_;
  call.generation = heap_->generation();
  call.roster = local_layout_.roster;
  call.flush_after_idle_steps = options_.flush_after_idle_steps;
  args.deadline_ns = static_cast<std::uint64_t>(options_.deadline_seconds * 1e9);
  args.decode_rows = options_.decode_rows;
  args.early_push = options_.early_push;
  args.early_cut = options_.early_cut;
  if (engine_of(call.geometry()) == Engine::hopper) {  // narrow and half up tiles are decode tiles
    TileShape& tile = call.heap.geometry.tile;
    tile.narrow_rows = std::min(tile.narrow_rows, options_.decode_rows);
    tile.half_rows = std::min(tile.half_rows, options_.decode_rows);
    tile.tagged_rows = std::min(tile.tagged_rows, options_.decode_rows);
  }
  args.state = state_.as<KernelState>();
  args.outcome = outcome_.get();
  return args;
}

KernelState RankContext::state(cudaStream_t stream) const {
  const DeviceGuard guard(device());
  KernelState state;
  check(cudaMemcpyAsync(&state, state_.as<char>(), sizeof(state), cudaMemcpyDeviceToHost, stream), "cudaMemcpyAsync");
  check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  return state;
}

Layer::Layer(std::shared_ptr<RankContext> context, const Problem& problem, const WeightsView& weights,
             std::uint64_t layer_id)
    : context_(std::move(context)), problem_(problem), weights_(weights), layer_id_(layer_id),
      kernel_(context_->kernel(problem.dtype)) {
  const Geometry& geometry = context_->heap().layout().geometry;
  if (engine_of(geometry) == Engine::hopper) {
    maps_ = hopper::make_tensor_maps(problem_, geometry, weights_, context_->intermediate());
  }
}

CallPlan Layer::plan(std::int64_t max_tokens) const {
  CallPlan plan = plan_call(problem_, context_->heap().layout().geometry, max_tokens);
  if (!context_->pairs()) plan.tickets_at_once = 1;
  return plan;
}

void Layer::forward(const CallInput& input, cudaStream_t stream) {
  const std::lock_guard lock(context_->mutex());
  status();
  KernelArgs args = context_->make_args();
  Call& call = args.call;
  call.layer_id = layer_id_;
  call.plan = plan(input.max_tokens);
  call.plan_hash = plan_hash(call.geometry(), call.plan);
  call.math = {.dtype = problem_.dtype,
               .activation = problem_.activation,
               .gated = problem_.gated,
               .up_bias = problem_.up_bias,
               .down_bias = problem_.down_bias,
               .weight_on_input = problem_.weight_on_input,
               .swiglu_alpha = problem_.swiglu_alpha,
               .swiglu_limit = problem_.swiglu_limit};
  call.x = input.x.data;
  call.topk_ids = input.routing.topk_ids;
  call.topk_weights = input.routing.topk_weights;
  call.y = input.y.data;
  call.num_tokens = input.x.num_rows;
  args.weights = weights_;
  args.num_tokens = input.num_tokens;
  args.trace = input.trace;
  if (input.deadline_seconds > 0) args.deadline_ns = static_cast<std::uint64_t>(input.deadline_seconds * 1e9);

  const DeviceGuard guard(context_->device());
  void* parameters[] = {&args, &maps_};  // the portable kernel takes the first alone
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(stream, &capture), "cudaStreamIsCapturing");
  const bool eager = capture == cudaStreamCaptureStatusNone;
  context_->note_launch(stream);
  if (eager) check(cudaStreamWaitEvent(stream, context_->last_launch(), 0), "cudaStreamWaitEvent");
  const int blocks_together = call.plan.tickets_at_once;
  const ClusterLaunch launch(context_->num_blocks() / blocks_together, blocks_together, kernel_.threads, kernel_.shared_bytes,
                             stream);
  const void* function = blocks_together == 2 ? kernel_.pair_function : kernel_.function;
  check(cudaLaunchKernelExC(&launch.config, function, parameters), "cudaLaunchKernelExC");
  if (eager) check(cudaEventRecord(context_->last_launch(), stream), "cudaEventRecord");
}

void Layer::status() const {
  const Outcome& outcome = context_->outcome();
  if (observe<Scope::system>(&outcome.failed) == 0) return;
  // The other ranks' records arrive within a moment of this one's.
  const DeviceHeap& heap = context_->heap();
  const HeapLayout& layout = heap.layout();
  const int num_ranks = layout.geometry.num_ranks;
  const DeviceGuard guard(context_->device());
  OwnedStream stream;
  stream.create();
  std::vector<Line> lines(static_cast<std::size_t>(num_ranks));
  std::vector<Stall> posted(lines.size());
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(500);
  bool all = false;
  while (!all && std::chrono::steady_clock::now() < end) {
    check(cudaMemcpyAsync(lines.data(), heap.base(context_->rank()) + layout.stall_record(0),
                          lines.size() * sizeof(Line), cudaMemcpyDeviceToHost, stream.get()),
          "cudaMemcpyAsync");
    check(cudaStreamSynchronize(stream.get()), "cudaStreamSynchronize");
    all = true;
    for (std::size_t rank = 0; rank < lines.size(); ++rank) {
      std::uint64_t words[kStallWords];
      std::copy_n(lines[rank].data, kStallWords, words);
      if (lines[rank].tag >> 48 == heap.generation()) posted[rank] = decode_stall(words);
      all = all && posted[rank].rank >= 0;
    }
    if (!all) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const double deadline_seconds = static_cast<double>(outcome.deadline_ns) * 1e-9;
  throw_stall(explain(posted, context_->rank()), context_->rank(), deadline_seconds, problem_.top_k,
              problem_.num_experts, heap.num_ranks_beside(context_->rank()) > 1);
}

}  // namespace flashmoe::cuda_backend
