// All ranks of a group on the CUDA backend in one process, one stream a rank: what a conformance test drives.
#pragma once

#include <condition_variable>
#include <cstdlib>
#include <limits>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "cuda/kernel_table.hpp"
#include "cuda/layer.hpp"
#include "cuda/local_heap.hpp"
#include "gpu/poison_lines.hpp"
#include "support/batch.hpp"
#include "support/poison.hpp"
#include "support/rank_threads.hpp"
#include "support/uploaded.hpp"

namespace flashmoe::test {

/// GPUs of this machine that are usable; 0 where there is no driver.
inline int num_visible_gpus() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  cudaGetLastError();
  return 0;
}

/// Buffers and a stream for one call of a rank, made beforehand: nothing may be allocated or freed on a GPU while a
/// kernel there may be waiting for this rank.
class Seat {
 public:
  Seat(int device, const Problem& problem)
      : x_(device, rows(problem)), y_(device, rows(problem)), ids_(device, routes(problem)),
        weights_(device, routes(problem)) {
    cuda_backend::check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  }
  ~Seat() { cudaStreamDestroy(stream_); }
  Seat(const Seat&) = delete;
  Seat& operator=(const Seat&) = delete;

  cudaStream_t stream() const { return stream_; }

  /// Copies a batch in, poisoned output included.
  void load(const Batch& batch) {
    copy(x_.as(), batch.x.data(), batch.x.size(), cudaMemcpyHostToDevice);
    copy(y_.as(), batch.y.data(), batch.y.size(), cudaMemcpyHostToDevice);
    copy(ids_.as(), batch.topk_ids.data(), batch.topk_ids.size() * 4, cudaMemcpyHostToDevice);
    copy(weights_.as(), batch.topk_weights.data(), batch.topk_weights.size() * 4, cudaMemcpyHostToDevice);
  }
  /// Waits for the call and copies inputs and output back. In this order: a copy that waits in its engine's queue for a
  /// kernel holds up those of the ranks that the kernel waits for.
  void store(Batch& batch) const {
    synchronize();
    copy(batch.x.data(), x_.as(), batch.x.size(), cudaMemcpyDeviceToHost);
    copy(batch.y.data(), y_.as(), batch.y.size(), cudaMemcpyDeviceToHost);
    copy(batch.topk_ids.data(), ids_.as(), batch.topk_ids.size() * 4, cudaMemcpyDeviceToHost);
    copy(batch.topk_weights.data(), weights_.as(), batch.topk_weights.size() * 4, cudaMemcpyDeviceToHost);
    synchronize();
  }
  void synchronize() const { cuda_backend::check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }

  cuda_backend::CallInput input(std::int64_t num_tokens, std::int64_t max_tokens, double deadline_seconds = 0) const {
    return {.x = {x_.as(), num_tokens},
            .routing = {ids_.as<std::int32_t>(), weights_.as<float>()},
            .y = {y_.as(), num_tokens},
            .max_tokens = max_tokens,
            .num_tokens = nullptr,
            .deadline_seconds = deadline_seconds};
  }

 private:
  static std::size_t rows(const Problem& problem) {
    return static_cast<std::size_t>(problem.max_tokens * problem.hidden) * dtype_bytes(problem.dtype);
  }
  static std::size_t routes(const Problem& problem) {
    return static_cast<std::size_t>(problem.max_tokens * problem.top_k) * 4;
  }
  void copy(void* target, const void* source, std::size_t bytes, cudaMemcpyKind kind) const {
    if (bytes > 0) cuda_backend::check(cudaMemcpyAsync(target, source, bytes, kind, stream_), "cudaMemcpyAsync");
  }

  cuda_backend::DeviceMemory x_, y_, ids_, weights_;
  cudaStream_t stream_ = nullptr;
};

class CudaWorld : public RankThreads {
 public:
  using Options = cuda_backend::LaunchOptions;

  /// Rank r runs on GPU r % num_devices, by default of all GPUs there are.
  CudaWorld(const Problem& problem, std::shared_ptr<const ExpertSource> experts,
            const Options& options = default_options(), int num_devices = num_visible_gpus())
      : CudaWorld(problem, std::vector<std::shared_ptr<const ExpertSource>>{std::move(experts)}, options,
                  num_devices) {}

  /// One layer for every entry of `layers`, all on one heap.
  CudaWorld(const Problem& problem, const std::vector<std::shared_ptr<const ExpertSource>>& layers,
            const Options& options = default_options(), int num_devices = num_visible_gpus())
      : RankThreads(problem.num_ranks), stats_(static_cast<std::size_t>(problem.num_ranks)) {
    std::vector<int> devices;
    for (int rank = 0; rank < problem.num_ranks; ++rank) devices.push_back(rank % std::max(1, num_devices));
    heap_ = std::make_shared<cuda_backend::LocalHeap>(plan_geometry(problem, traits(problem)), devices);
    for (int rank = 0; rank < problem.num_ranks; ++rank) {
      ranks_.push_back(std::make_unique<Rank>());
      Rank& own = *ranks_.back();
      own.context = std::make_shared<cuda_backend::RankContext>(heap_, rank, problem.dtype, options);
      const cuda_backend::DeviceGuard guard(own.context->device());
      for (std::size_t i = 0; i < layers.size(); ++i) {
        own.weights.push_back(std::make_unique<UploadedWeights>(own.context->device(), problem, *layers[i], rank));
        own.layers.push_back(
            std::make_unique<cuda_backend::Layer>(own.context, problem, own.weights.back()->view(), i + 1));
      }
      for (int seat = 0; seat < kSeats; ++seat) {
        own.seats.push_back(std::make_unique<Seat>(own.context->device(), problem));
        own.free_seats.push_back(own.seats.back().get());
      }
    }
  }

  static Options default_options() { return {.deadline_seconds = 5.0}; }
  /// Of the engine that FLASHMOE_ENGINE names (portable, hopper) where it has a kernel for the type, else of the one
  /// that the library chooses.
  static EngineTraits traits(const Problem& problem) {
    using cuda_backend::Engine;
    const char* name = std::getenv("FLASHMOE_ENGINE");
    const std::string_view wanted = name != nullptr ? name : "";
    const bool narrow = problem.dtype == DType::bf16 || problem.dtype == DType::fp16;
    EngineTraits traits = cuda_backend::engine_traits(problem, wanted == "portable"           ? Engine::portable
                                                               : wanted == "hopper" && narrow ? Engine::hopper
                                                                                              : Engine::automatic);
    const std::string_view pairs = pairs_wanted();
    if (!pairs.empty()) traits.tile.pair_rows = pairs == "0" ? std::numeric_limits<int>::max() : 0;
    return traits;
  }
  /// FLASHMOE_PAIRS: 1, blocks take tasks in pairs wherever they can, even for few rows; 0, they never do; else as planned.
  static std::string_view pairs_wanted() {
    const char* value = std::getenv("FLASHMOE_PAIRS");
    return value != nullptr ? value : "";
  }
  static bool in_pairs() { return pairs_wanted() == "1"; }
  /// Settings that must not change any result: blocks a rank, fewest first.
  static std::vector<Options> variants() {
    const int few = in_pairs() ? 4 : 1;
    const int some = in_pairs() ? 8 : 7;
    return {{.num_blocks = few, .deadline_seconds = 5.0}, {.num_blocks = some, .deadline_seconds = 5.0}, default_options()};
  }

  /// Of a call of layer 0, on rank 0.
  CallPlan plan_of(std::int64_t max_tokens) const { return ranks_[0]->layers[0]->plan(max_tokens); }

  /// Runs one call of layer 0; entry r is rank r's batch, null where the rank never enters. Throws nothing: see
  /// message().
  void call(const std::vector<Batch*>& batches, std::int64_t max_tokens, double deadline_seconds = 0) {
    forget_errors();
    std::vector<cuda_backend::KernelState> before(batches.size());
    for (std::size_t rank = 0; rank < batches.size(); ++rank) {
      before[rank] = context(rank).state();
      if (batches[rank] == nullptr) continue;
      const cuda_backend::DeviceGuard guard(context(rank).device());
      seat(rank).load(*batches[rank]);
    }
    synchronize_all();
    for (std::size_t rank = 0; rank < batches.size(); ++rank) {
      if (batches[rank] == nullptr) continue;
      guarded(rank, [&] {
        layer(rank).forward(seat(rank).input(batches[rank]->num_tokens, max_tokens, deadline_seconds), stream(rank));
      });
    }
    for (std::size_t rank = 0; rank < batches.size(); ++rank) {
      if (batches[rank] == nullptr) continue;
      const cuda_backend::DeviceGuard guard(context(rank).device());
      guarded(rank, [&] {
        seat(rank).store(*batches[rank]);
        keep_stats(rank, before[rank], context(rank).state(), max_tokens);
      });
    }
    for (std::size_t rank = 0; rank < batches.size(); ++rank) {
      if (batches[rank] != nullptr && !failed(rank)) guarded(rank, [&] { layer(rank).status(); });
    }
  }

  /// One rank's part of a call, in the caller's thread, on a stream that no other call under way uses.
  void forward(std::size_t rank, Batch& batch, std::int64_t max_tokens, double deadline_seconds = 0,
               std::size_t layer_index = 0) {
    const cuda_backend::DeviceGuard guard(context(rank).device());
    const TakenSeat taken(*ranks_[rank]);
    Seat& own = taken.seat();
    own.load(batch);
    const cuda_backend::KernelState before = context(rank).state(own.stream());
    layer(rank, layer_index).forward(own.input(batch.num_tokens, max_tokens, deadline_seconds), own.stream());
    own.store(batch);
    keep_stats(rank, before, context(rank).state(own.stream()), max_tokens);
    layer(rank, layer_index).status();
  }

  /// NaN in all memory that a call must write before it reads it.
  void poison() {
    for (const auto& own : ranks_) {
      const cuda_backend::RankContext& context = *own->context;
      const cuda_backend::DeviceGuard guard(context.device());
      const Call call = context.make_args().call;
      const auto fill = [&](char* base) {
        return [=](std::size_t offset, std::size_t count) {
          if (count == 0) return;
          cuda_backend::check(cudaMemsetAsync(base + offset, kPoison, count, cudaStreamPerThread), "cudaMemsetAsync");
        };
      };
      char* heap = heap_->base(context.rank());
      each_payload(heap_->layout(), fill(heap), [&](std::size_t offset, std::size_t count) {
        cuda_backend::check(poison_lines(reinterpret_cast<Line*>(heap + offset), count, cudaStreamPerThread),
                            "poison_lines");
      });
      each_scratch(call.local_layout, fill(call.local));
      cuda_backend::check(cudaStreamSynchronize(cudaStreamPerThread), "cudaStreamSynchronize");
    }
  }

  /// Bytes of rows that a rank sent to others in its last call, and of everything else.
  std::uint64_t payload_bytes(std::size_t rank) const { return stats_[rank].payload_bytes; }
  std::uint64_t overhead_bytes(std::size_t rank) const { return stats_[rank].overhead_bytes; }
  /// Tasks of a rank's last call whose weights two blocks loaded together.
  std::uint64_t shared_tasks(std::size_t rank) const { return stats_[rank].shared_tasks; }
  /// Whether the m-blocks of a rank's last call were cut from ids.
  bool cut_early(std::size_t rank) const { return stats_[rank].early_cuts > 0; }
  /// First tasks of blocks that they found from ids in a rank's last call.
  std::uint64_t opened_tasks(std::size_t rank) const { return stats_[rank].opened_tasks; }
  CallPlan plan(std::size_t rank) const { return stats_[rank].plan; }
  /// Calls that a rank has finished on the heap.
  std::uint64_t calls_finished(std::size_t rank) { return context(rank).outcome().finished_epochs; }

  const HeapLayout& layout() const { return heap_->layout(); }
  cuda_backend::RankContext& context(std::size_t rank) { return *ranks_[rank]->context; }
  cuda_backend::Layer& layer(std::size_t rank, std::size_t index = 0) { return *ranks_[rank]->layers[index]; }
  /// The buffers and the stream that call() uses.
  Seat& seat(std::size_t rank) { return *ranks_[rank]->seats.front(); }
  cudaStream_t stream(std::size_t rank) { return seat(rank).stream(); }

  /// A copy of a rank's heap.
  std::vector<char> read_heap(std::size_t rank) {
    const cuda_backend::DeviceGuard guard(context(rank).device());
    std::vector<char> bytes(heap_->layout().total_bytes);
    const char* heap = heap_->base(static_cast<int>(rank));
    cuda_backend::check(cudaMemcpy(bytes.data(), heap, bytes.size(), cudaMemcpyDeviceToHost), "cudaMemcpy");
    return bytes;
  }

  void synchronize_all() {
    for (const auto& own : ranks_) {
      const cuda_backend::DeviceGuard guard(own->context->device());
      cuda_backend::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    }
  }

 private:
  static constexpr int kSeats = 2;

  struct Rank {
    std::shared_ptr<cuda_backend::RankContext> context;
    std::vector<std::unique_ptr<UploadedWeights>> weights;          // [num_layers]
    std::vector<std::unique_ptr<cuda_backend::Layer>> layers;       // [num_layers]
    std::vector<std::unique_ptr<Seat>> seats;                       // [kSeats]
    std::mutex mutex;  // of what follows
    std::condition_variable seat_left;
    std::vector<Seat*> free_seats;
  };
  /// A seat for the length of a call; waits until one is free.
  class TakenSeat {
   public:
    explicit TakenSeat(Rank& rank) : rank_(rank) {
      std::unique_lock lock(rank_.mutex);
      rank_.seat_left.wait(lock, [&] { return !rank_.free_seats.empty(); });
      seat_ = rank_.free_seats.back();
      rank_.free_seats.pop_back();
    }
    ~TakenSeat() {
      const std::lock_guard lock(rank_.mutex);
      rank_.free_seats.push_back(seat_);
      rank_.seat_left.notify_one();
    }
    TakenSeat(const TakenSeat&) = delete;
    TakenSeat& operator=(const TakenSeat&) = delete;
    Seat& seat() const { return *seat_; }

   private:
    Rank& rank_;
    Seat* seat_;
  };
  struct CallStats {
    CallPlan plan;
    std::uint64_t payload_bytes = 0;
    std::uint64_t overhead_bytes = 0;
    std::uint64_t shared_tasks = 0;
    std::uint64_t early_cuts = 0;
    std::uint64_t opened_tasks = 0;
  };

  void keep_stats(std::size_t rank, const cuda_backend::KernelState& before, const cuda_backend::KernelState& after,
                  std::int64_t max_tokens) {
    const std::lock_guard lock(ranks_[rank]->mutex);
    stats_[rank] = {.plan = layer(rank).plan(max_tokens),
                    .payload_bytes = after.payload_bytes - before.payload_bytes,
                    .overhead_bytes = after.overhead_bytes - before.overhead_bytes,
                    .shared_tasks = after.shared_tasks - before.shared_tasks,
                    .early_cuts = after.early_cuts - before.early_cuts,
                    .opened_tasks = after.opened_tasks - before.opened_tasks};
  }

  std::shared_ptr<cuda_backend::LocalHeap> heap_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::vector<CallStats> stats_;
};

/// Whether the problem's layer runs on engine hopper here.
inline bool runs_on_hopper(const Problem& problem) {
  return cuda_backend::engine_of(plan_geometry(problem, CudaWorld::traits(problem))) == cuda_backend::Engine::hopper;
}

}  // namespace flashmoe::test
