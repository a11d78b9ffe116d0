// The router of a job's layer.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "flashmoe/router.hpp"
#include "io/checkpoint.hpp"
#include "io/synthetic_routing.hpp"
#include "job.hpp"

namespace flashmoe::cli {

/// Rules and parameters: the checkpoint's, or generated ones.
class RouterOf {
 public:
  /// Without a checkpoint the weight is generated from the job's seed, uniform of variance 1 / hidden, biases are left
  /// out, and a layer without a model routes by softmax_topk. Throws InvalidArgument when the family has no router.
  RouterOf(const Job& job, const std::optional<CheckpointLayer>& checkpoint);

  const RouterConfig& config() const { return config_; }

  /// Routes of x [num_tokens][hidden] of the job's dtype, on `backend`.
  RankRouting route(ConstRows x, BackendKind backend) const;

 private:
  RouterConfig config_;
  int hidden_;
  DType dtype_;
  int device_;
  std::vector<float> weight_, bias_, selection_bias_;
};

}  // namespace flashmoe::cli
