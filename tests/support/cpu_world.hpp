// All ranks of a group on the CPU backend, one thread a rank: what a conformance test drives.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cpu/layer.hpp"
#include "planner/plan.hpp"
#include "support/batch.hpp"
#include "support/poison.hpp"

namespace flashmoe::test {

class CpuWorld {
 public:
  CpuWorld(const Problem& problem, std::shared_ptr<const ExpertSource> experts, const cpu::RankOptions& options = {},
           const EngineTraits& traits = cpu::engine_traits())
      : CpuWorld(problem, std::vector<std::shared_ptr<const ExpertSource>>{std::move(experts)}, options, traits) {}

  /// One layer for every entry of `layers`, all on one heap.
  CpuWorld(const Problem& problem, const std::vector<std::shared_ptr<const ExpertSource>>& layers,
           const cpu::RankOptions& options = {}, const EngineTraits& traits = cpu::engine_traits())
      : heap_(std::make_shared<cpu::Heap>(plan_geometry(problem, traits))),
        layers_(static_cast<std::size_t>(problem.num_ranks)),
        errors_(layers_.size()),
        stats_(layers_.size()) {
    for (std::size_t rank = 0; rank < layers_.size(); ++rank) {
      contexts_.push_back(std::make_shared<cpu::RankContext>(heap_, static_cast<int>(rank), options));
      for (std::size_t i = 0; i < layers.size(); ++i) {
        layers_[rank].push_back(std::make_unique<cpu::Layer>(contexts_.back(), problem, layers[i], i + 1));
      }
    }
  }

  /// Runs one call of layer 0; entry r is rank r's batch, null where the rank never enters. Rethrows nothing: see
  /// errors().
  std::vector<cpu::CallStats> call(const std::vector<Batch*>& batches, std::int64_t max_tokens,
                                   double deadline_seconds = 20.0) {
    return each_rank([&](std::size_t rank) {
      if (batches[rank] != nullptr) forward(rank, *batches[rank], max_tokens, deadline_seconds);
    });
  }

  /// Runs `work(rank)` in one thread a rank, and keeps what it throws.
  std::vector<cpu::CallStats> each_rank(const std::function<void(std::size_t)>& work) {
    errors_.assign(layers_.size(), nullptr);
    stats_.assign(layers_.size(), {});
    std::vector<std::jthread> threads;
    for (std::size_t rank = 0; rank < layers_.size(); ++rank) {
      threads.emplace_back([&, rank] {
        try {
          work(rank);
        } catch (...) {
          errors_[rank] = std::current_exception();
        }
      });
    }
    threads.clear();
    return stats_;
  }

  /// One rank's part of a call, in the caller's thread.
  void forward(std::size_t rank, Batch& batch, std::int64_t max_tokens, double deadline_seconds = 20.0,
               std::size_t layer = 0) {
    stats_[rank] = this->layer(rank, layer).forward(input_of(batch, max_tokens), deadline_seconds);
  }

  static cpu::CallInput input_of(Batch& batch, std::int64_t max_tokens) {
    return {.x = batch.x_view(), .routing = batch.routing(), .y = batch.y_view(), .max_tokens = max_tokens};
  }

  /// NaN in all memory that a call must write before it reads it.
  void poison() {
    poison_heap(*heap_);
    for (const auto& context : contexts_) poison_scratch(*context);
  }

  /// Bytes of rows that a rank sent to others in the last call.
  std::uint64_t payload_bytes(std::size_t rank) const { return stats_[rank].traffic.payload_bytes; }
  std::uint64_t overhead_bytes(std::size_t rank) const { return stats_[rank].traffic.overhead_bytes; }
  CallPlan plan(std::size_t rank) const { return stats_[rank].plan; }

  /// What each rank's last call threw, or null.
  const std::vector<std::exception_ptr>& errors() const { return errors_; }

  /// The message of rank r's error, empty without one.
  std::string message(std::size_t rank) const {
    if (!errors_[rank]) return {};
    try {
      std::rethrow_exception(errors_[rank]);
    } catch (const std::exception& error) {
      return error.what();
    }
  }

  template <class Exception>
  bool threw(std::size_t rank) const {
    if (!errors_[rank]) return false;
    try {
      std::rethrow_exception(errors_[rank]);
    } catch (const Exception&) {
      return true;
    } catch (...) {
      return false;
    }
  }

  cpu::Heap& heap() { return *heap_; }
  cpu::Layer& layer(std::size_t rank, std::size_t index = 0) { return *layers_[rank][index]; }
  const cpu::RankContext& context(std::size_t rank) const { return *contexts_[rank]; }

 private:
  std::shared_ptr<cpu::Heap> heap_;
  std::vector<std::shared_ptr<cpu::RankContext>> contexts_;
  std::vector<std::vector<std::unique_ptr<cpu::Layer>>> layers_;  // [num_ranks][num_layers]
  std::vector<std::exception_ptr> errors_;
  std::vector<cpu::CallStats> stats_;
};

}  // namespace flashmoe::test
