// All ranks of a group on the CPU backend, one thread a rank: what a conformance test drives.
#pragma once

#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cpu/layer.hpp"
#include "planner/plan.hpp"
#include "support/batch.hpp"

namespace flashmoe::test {

class CpuWorld {
 public:
  CpuWorld(const Problem& problem, std::shared_ptr<const ExpertSource> experts, const cpu::RankOptions& options = {},
           const EngineTraits& traits = cpu::engine_traits())
      : heap_(std::make_shared<cpu::Heap>(plan_geometry(problem, traits))) {
    for (int rank = 0; rank < problem.num_ranks; ++rank) {
      auto context = std::make_shared<cpu::RankContext>(heap_, rank, options);
      layers_.push_back(std::make_unique<cpu::Layer>(std::move(context), problem, experts, 1));
    }
  }

  /// Runs one call; entry r is rank r's batch, null where the rank never enters. Rethrows nothing: see errors().
  std::vector<cpu::CallStats> call(const std::vector<Batch*>& batches, std::int64_t max_tokens,
                                   double deadline_seconds = 20.0) {
    std::vector<cpu::CallStats> stats(batches.size());
    errors_.assign(batches.size(), nullptr);
    std::vector<std::jthread> threads;
    for (std::size_t rank = 0; rank < batches.size(); ++rank) {
      if (batches[rank] == nullptr) continue;
      threads.emplace_back([&, rank] {
        try {
          Batch& batch = *batches[rank];
          stats[rank] = layers_[rank]->forward(
              {.x = batch.x_view(), .routing = batch.routing(), .y = batch.y_view(), .max_tokens = max_tokens},
              deadline_seconds);
        } catch (...) {
          errors_[rank] = std::current_exception();
        }
      });
    }
    threads.clear();
    return stats;
  }

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

  cpu::Heap& heap() { return *heap_; }

 private:
  std::shared_ptr<cpu::Heap> heap_;
  std::vector<std::unique_ptr<cpu::Layer>> layers_;
  std::vector<std::exception_ptr> errors_;
};

}  // namespace flashmoe::test
