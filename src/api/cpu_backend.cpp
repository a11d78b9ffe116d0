#include "api/cpu_backend.hpp"

#include <mutex>
#include <utility>
#include <vector>

#include "api/dense_weights.hpp"
#include "cpu/layer.hpp"

namespace flashmoe {

namespace {

class CpuLayer final : public RankLayer {
 public:
  CpuLayer(std::shared_ptr<cpu::RankContext> context, const Problem& problem,
           std::shared_ptr<const ExpertSource> experts, std::uint64_t layer_id)
      : layer_(std::move(context), problem, std::move(experts), layer_id) {}

  CallStats forward(const LayerCall& call, double deadline_seconds) override {
    const cpu::CallStats stats = layer_.forward(
        {.x = call.x, .routing = call.routing, .y = call.y, .max_tokens = call.max_tokens}, deadline_seconds, trace_);
    return {.wire_form = stats.plan.wire_form,
            .result_form = stats.plan.result_form,
            .epoch = stats.epoch,
            .wire_bytes = stats.traffic.payload_bytes,
            .wire_overhead_bytes = stats.traffic.overhead_bytes,
            .kernel_launches = 0,
            .phases = stats.phases};
  }

  void trace_to(RankTrace* trace) override { trace_ = trace; }

 private:
  cpu::Layer layer_;
  RankTrace* trace_ = nullptr;
};

/// Experts stay in their source: engines ask for one at a time.
struct SourceOfExperts final : LoadedExperts {
  explicit SourceOfExperts(std::shared_ptr<const ExpertSource> source) : experts(std::move(source)) {}
  std::shared_ptr<const ExpertSource> experts;
};

class CpuHeap final : public SharedHeap {
 public:
  CpuHeap(const Geometry& geometry, const cpu::RankOptions& options)
      : heap_(std::make_shared<cpu::Heap>(geometry)),
        options_(options),
        contexts_(static_cast<std::size_t>(geometry.num_ranks)) {}

  const HeapLayout& layout() const override { return heap_->layout(); }
  bool dead() const override { return heap_->death().has_value(); }

  std::unique_ptr<RankLayer> make_layer(int rank, const Problem& problem, const RankWeights& weights,
                                        std::uint64_t layer_id) override {
    std::shared_ptr<const ExpertSource> experts;
    if (const auto* view = std::get_if<WeightsView>(&weights)) {
      experts = std::make_shared<DenseWeights>(problem, rank, *view);
    } else if (const auto* source = std::get_if<std::shared_ptr<const ExpertSource>>(&weights)) {
      experts = *source;
    } else {
      experts = static_cast<const SourceOfExperts&>(*std::get<std::shared_ptr<const LoadedExperts>>(weights)).experts;
    }
    return std::make_unique<CpuLayer>(context(rank), problem, std::move(experts), layer_id);
  }

 private:
  std::shared_ptr<cpu::RankContext> context(int rank) {
    const std::lock_guard lock(mutex_);
    auto& context = contexts_[static_cast<std::size_t>(rank)];
    if (!context) context = std::make_shared<cpu::RankContext>(heap_, rank, options_);
    return context;
  }

  std::shared_ptr<cpu::Heap> heap_;
  cpu::RankOptions options_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<cpu::RankContext>> contexts_;  // [num_ranks], null until the rank's first layer
};

class CpuBackend final : public Backend {
 public:
  explicit CpuBackend(const GroupOptions& options)
      : options_{.roster = {.num_dispatchers = options.num_dispatchers,
                            .num_processors = options.num_processors},
                 .num_threads = options.num_threads} {}

  std::string engine_name(const Problem&) const override { return "cpu-openblas"; }
  int device_of(int) const override { return -1; }
  fabric::GpuUuid gpu_uuid(int) const override { return {}; }
  EngineTraits engine_traits(const Problem&) const override { return cpu::engine_traits(); }
  std::shared_ptr<const LoadedExperts> load(int, const Problem&,
                                            std::shared_ptr<const ExpertSource> experts) const override {
    return std::make_shared<SourceOfExperts>(std::move(experts));
  }
  std::size_t local_bytes(const Geometry& geometry) const override {
    return make_local_layout(geometry, options_.roster).total_bytes;
  }
  std::shared_ptr<SharedHeap> make_heap(const Geometry& geometry, std::unique_ptr<fabric::Bootstrap>) const override {
    return std::make_shared<CpuHeap>(geometry, options_);
  }

 private:
  cpu::RankOptions options_;
};

}  // namespace

std::unique_ptr<Backend> make_cpu_backend(const GroupOptions& options) { return std::make_unique<CpuBackend>(options); }

}  // namespace flashmoe
