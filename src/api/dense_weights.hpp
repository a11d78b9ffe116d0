// One rank's experts where the caller keeps them, as the engines ask for them.
#pragma once

#include <memory>

#include "core/expert_source.hpp"
#include "flashmoe/problem.hpp"
#include "flashmoe/views.hpp"

namespace flashmoe {

/// Throws InvalidArgument when `weights` lacks a tensor the problem has, holds a bias it does not have, or a pointer is
/// not aligned to its elements.
void check_weights(const Problem& problem, const WeightsView& weights);

class DenseWeights final : public ExpertSource {
 public:
  /// `weights` has passed check_weights() and holds the experts of `rank`.
  DenseWeights(const Problem& problem, int rank, const WeightsView& weights)
      : problem_(problem), first_expert_(rank * problem.num_local_experts()), weights_(weights) {}

  /// Of an expert of the rank; copies nothing.
  std::shared_ptr<const ExpertParameters> expert(int expert_index) const override;

 private:
  Problem problem_;
  int first_expert_;
  WeightsView weights_;
};

}  // namespace flashmoe
