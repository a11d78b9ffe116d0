// Non-owning views of tensors in row-major order, as the interfaces take them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace flashmoe {

/// Rows of elements whose type is the Problem's dtype: [num_rows][row_elements], rows contiguous.
struct ConstRows {
  const void* data = nullptr;
  std::int64_t num_rows = 0;
};

struct Rows {
  void* data = nullptr;
  std::int64_t num_rows = 0;
};

/// A token batch's routing. ids: -1 masks a route; an expert may repeat inside a token.
struct RoutingView {
  const std::int32_t* topk_ids = nullptr;  // [num_tokens][top_k]
  const float* topk_weights = nullptr;     // [num_tokens][top_k]
};

/// One expert's or one rank's parameters, elements of the Problem's dtype, biases fp32.
/// Expert-major; `up` holds the gate rows first, then the up rows, as nn.Linear stores them.
struct WeightsView {
  const void* up = nullptr;          // [num_local_experts][up_columns][hidden]
  const void* down = nullptr;        // [num_local_experts][hidden][intermediate]
  const float* up_bias = nullptr;    // [num_local_experts][up_columns] or null
  const float* down_bias = nullptr;  // [num_local_experts][hidden] or null
};

}  // namespace flashmoe
