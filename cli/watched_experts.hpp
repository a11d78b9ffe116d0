// Experts of another source, reporting to a stage how far the work has come.
#pragma once

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "core/expert_source.hpp"
#include "progress.hpp"

namespace flashmoe::cli {

/// Advances the stage when an expert is asked for the first time since the stage was set. Both engine and reference ask
/// for an expert when its work begins, so this is how many have been begun.
class WatchedExperts final : public ExpertSource {
 public:
  WatchedExperts(std::shared_ptr<const ExpertSource> experts, int num_experts)
      : experts_(std::move(experts)), seen_(static_cast<std::size_t>(num_experts)) {}

  /// Not while somebody asks for experts. The stage outlives its turn; null: nobody watches.
  void watch(Stage* stage) {
    stage_ = stage;
    for (auto& seen : seen_) seen.store(false, std::memory_order_relaxed);
  }

  std::shared_ptr<const ExpertParameters> expert(int expert_index) const override {
    auto handle = experts_->expert(expert_index);
    if (stage_ != nullptr && !seen_[static_cast<std::size_t>(expert_index)].exchange(true, std::memory_order_relaxed)) {
      stage_->advance();
    }
    return handle;
  }

 private:
  std::shared_ptr<const ExpertSource> experts_;
  Stage* stage_ = nullptr;
  mutable std::vector<std::atomic<bool>> seen_;  // [num_experts]
};

}  // namespace flashmoe::cli
