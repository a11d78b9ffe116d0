// Where an engine gets one expert's parameters from: dense memory, a generator or a checkpoint.
#pragma once

#include <memory>

namespace flashmoe {

/// One expert's matrices, elements of the Problem's dtype, biases fp32 or null.
struct ExpertParameters {
  const void* up = nullptr;          // [up_columns][hidden], gate rows first
  const void* down = nullptr;        // [hidden][intermediate]
  const float* up_bias = nullptr;    // [up_columns]
  const float* down_bias = nullptr;  // [hidden]
};

class ExpertSource {
 public:
  virtual ~ExpertSource() = default;

  /// Parameters of a global expert. The pointers live as long as the returned handle, and the values never change.
  /// Thread-safe. Throws Error when the expert cannot be produced.
  virtual std::shared_ptr<const ExpertParameters> expert(int expert_index) const = 0;
};

}  // namespace flashmoe
