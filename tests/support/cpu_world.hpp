// All ranks of a group on the CPU backend, one thread a rank: what a conformance test drives.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "cpu/layer.hpp"
#include "planner/plan.hpp"
#include "support/batch.hpp"
#include "support/poison.hpp"
#include "support/rank_threads.hpp"

namespace flashmoe::test {

class CpuWorld : public RankThreads {
 public:
  using Options = cpu::RankOptions;

  CpuWorld(const Problem& problem, std::shared_ptr<const ExpertSource> experts, const Options& options = {},
           const EngineTraits& traits = cpu::engine_traits())
      : CpuWorld(problem, std::vector<std::shared_ptr<const ExpertSource>>{std::move(experts)}, options, traits) {}

  /// One layer for every entry of `layers`, all on one heap.
  CpuWorld(const Problem& problem, const std::vector<std::shared_ptr<const ExpertSource>>& layers,
           const Options& options = {}, const EngineTraits& traits = cpu::engine_traits())
      : RankThreads(problem.num_ranks),
        heap_(std::make_shared<cpu::Heap>(plan_geometry(problem, traits))),
        layers_(static_cast<std::size_t>(problem.num_ranks)),
        stats_(layers_.size()) {
    for (std::size_t rank = 0; rank < layers_.size(); ++rank) {
      contexts_.push_back(std::make_shared<cpu::RankContext>(heap_, static_cast<int>(rank), options));
      for (std::size_t i = 0; i < layers.size(); ++i) {
        layers_[rank].push_back(std::make_unique<cpu::Layer>(contexts_.back(), problem, layers[i], i + 1));
      }
    }
  }

  /// Settings that must not change any result: rosters.
  static std::vector<Options> variants() {
    return {{.roster = {1, 1}, .num_threads = 2}, {.roster = {2, 3, 1, 8}, .num_threads = 2},
            {.roster = {3, 1}, .num_threads = 2}};
  }

  /// Runs one call of layer 0; entry r is rank r's batch, null where the rank never enters. Throws nothing: see
  /// message().
  void call(const std::vector<Batch*>& batches, std::int64_t max_tokens, double deadline_seconds = 20.0) {
    stats_.assign(stats_.size(), {});
    each_rank([&](std::size_t rank) {
      if (batches[rank] != nullptr) forward(rank, *batches[rank], max_tokens, deadline_seconds);
    });
  }

  /// One rank's part of a call, in the caller's thread.
  void forward(std::size_t rank, Batch& batch, std::int64_t max_tokens, double deadline_seconds = 20.0,
               std::size_t layer = 0) {
    const cpu::CallInput input{.x = batch.x_view(), .routing = batch.routing(), .y = batch.y_view(),
                               .max_tokens = max_tokens};
    const cpu::CallStats stats = layers_[rank][layer]->forward(input, deadline_seconds);
    const std::lock_guard lock(stats_mutex_);
    stats_[rank] = stats;
  }

  /// NaN in all memory that a call must write before it reads it.
  void poison() {
    poison_heap(*heap_);
    for (const auto& context : contexts_) poison_scratch(*context);
  }

  /// Bytes of rows that a rank sent to others in its last call, and of everything else.
  std::uint64_t payload_bytes(std::size_t rank) const { return stats_[rank].traffic.payload_bytes; }
  std::uint64_t overhead_bytes(std::size_t rank) const { return stats_[rank].traffic.overhead_bytes; }
  CallPlan plan(std::size_t rank) const { return stats_[rank].plan; }
  /// Calls that a rank has finished on the heap.
  std::uint64_t calls_finished(std::size_t rank) const { return contexts_[rank]->make_call().epoch; }

  cpu::Heap& heap() { return *heap_; }
  const cpu::RankContext& context(std::size_t rank) const { return *contexts_[rank]; }

 private:
  std::shared_ptr<cpu::Heap> heap_;
  std::vector<std::shared_ptr<cpu::RankContext>> contexts_;
  std::vector<std::vector<std::unique_ptr<cpu::Layer>>> layers_;  // [num_ranks][num_layers]
  std::mutex stats_mutex_;  // two calls of one rank may be under way
  std::vector<cpu::CallStats> stats_;
};

}  // namespace flashmoe::test
