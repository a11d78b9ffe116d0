// What a layer computes, for how many ranks, and within which limits. One validate() serves C++, C and the CLI.
#pragma once

#include <cstdint>
#include <string>

#include "flashmoe/export.hpp"
#include "flashmoe/types.hpp"

namespace flashmoe {

/// One distributed MoE layer. Experts are spread in blocks: rank r owns experts
/// [r * num_local_experts, (r + 1) * num_local_experts).
///
/// For token row x and each of its routes (expert e, weight w), with W = expert e's matrices,
///   gate = x W_gate[e]^T + b_gate[e], up = x W_up[e]^T + b_up[e]      (gated)
///   h = activation(gate) * up            (gated; swiglu_clamped as in types.hpp)
///   h = activation(x W_up[e]^T + b_up[e])                             (not gated)
///   y += w * (h W_down[e]^T + b_down[e])
/// With weight_on_input, w scales x W^T (before the bias) instead of the result.
struct Problem {
  int num_ranks = 1;
  int hidden = 0;             ///< row length of tokens and results, elements; a multiple of 8
  int intermediate = 0;       ///< expert inner width I (of gate, and of up), elements; a multiple of 8
  int num_experts = 0;        ///< global; a multiple of num_ranks
  int top_k = 0;              ///< routes a token, 1..min(num_experts, 32)
  std::int64_t max_tokens = 0;  ///< most tokens one rank brings to one call; the same on all ranks
  DType dtype = DType::bf16;
  Activation activation = Activation::silu;
  bool gated = true;
  bool up_bias = false;    ///< biases on gate and up, fp32 [num_experts][(gated ? 2 : 1) * intermediate]
  bool down_bias = false;  ///< biases on down, fp32 [num_experts][hidden]
  bool weight_on_input = false;
  double swiglu_alpha = 1.702;  ///< of swiglu_clamped
  double swiglu_limit = 7.0;    ///< of swiglu_clamped

  // Choices of the plan that the user may fix. They change speed, memory and rounding, never which routes count.
  WireForm wire_form = WireForm::automatic;
  ResultForm result_form = ResultForm::automatic;
  std::int64_t wave_tokens = 0;  ///< tokens of one rank processed as a unit; 0: planned
  int wave_ring = 0;             ///< waves in flight per source, 1..4; 0: planned
  bool batch_invariant = false;  ///< fix the tile variant and per_route results, whatever the batch

  constexpr int num_local_experts() const { return num_ranks > 0 ? num_experts / num_ranks : 0; }
  constexpr int up_columns() const { return gated ? 2 * intermediate : intermediate; }  ///< gate rows first, then up

  bool operator==(const Problem&) const = default;
};

/// Largest values validate() accepts.
struct Limits {
  static constexpr int num_ranks = 64;
  static constexpr int num_experts = 4096;
  static constexpr int top_k = 32;
  static constexpr int hidden = 65536;
  static constexpr int intermediate = 262144;
  static constexpr std::int64_t max_tokens = std::int64_t{1} << 22;
  static constexpr std::int64_t wave_tokens = 65535;
  static constexpr int wave_ring = 4;
  static constexpr std::int64_t lined_tokens = 1024;  ///< max_tokens with wire_form lined
};

/// Throws InvalidArgument with one sentence on the first rule the problem breaks.
FLASHMOE_API void validate(const Problem& problem);

/// Hash of every field, the same in every process of the same library version. Ranks compare it when they build a layer.
FLASHMOE_API std::uint64_t hash(const Problem& problem);

/// One line with every field, for messages and logs.
FLASHMOE_API std::string to_string(const Problem& problem);

}  // namespace flashmoe
