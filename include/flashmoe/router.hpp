// From router logits to (expert, weight) routes: every rule published checkpoints use.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "flashmoe/export.hpp"
#include "flashmoe/group.hpp"
#include "flashmoe/types.hpp"
#include "flashmoe/views.hpp"

namespace flashmoe {

/// How logits become routes. Ties always go to the lowest expert id. A token's ids are distinct and in range, and its
/// weights finite, whatever its logits: a NaN takes no part in any choice or sum, and where fewer than top_k experts
/// are left to choose, the lowest ids not chosen fill up with weight 0 (all NaN: ids 0..top_k-1, weights 0).
/// +Inf logits share a whole softmax among them.
enum class RouterFunction : std::uint8_t {
  softmax_topk,         ///< softmax over all experts, then the top_k largest (Qwen, OLMoE, Mixtral, DBRX); see `renormalize`
  topk_softmax,         ///< the top_k largest logits, softmax over those (gpt-oss)
  sigmoid_grouped,      ///< DeepSeek-V3: sigmoid; selection by score + bias, groups ranked by the sum of their two best
  sigmoid_topk,         ///< Llama 4: the top_k largest logits, weight sigmoid(logit); meant with weight_on_input
  softmax_group_limited,///< DeepSeek-V2: softmax; groups ranked by their best score
  sparsemixer,          ///< Phi-3.5-MoE at inference: top-2, each softmaxed over the experts within the jitter band
};

FLASHMOE_API RouterFunction parse_router_function(std::string_view name);
FLASHMOE_API std::string_view to_string(RouterFunction function);

struct RouterConfig {
  RouterFunction function = RouterFunction::softmax_topk;
  int num_experts = 0;
  int top_k = 0;
  bool renormalize = false;     ///< divide a token's weights by their sum + 1e-20 (topk_softmax sums to 1 anyway)
  double scaling_factor = 1.0;  ///< multiplies the weights at the end (DeepSeek's routed_scaling_factor); (0, 1e6]
  int num_groups = 1;           ///< expert groups (sigmoid_grouped, softmax_group_limited; else 1); divides num_experts
  int topk_groups = 1;          ///< groups kept; they must hold top_k experts
  double jitter_epsilon = 0.01; ///< sparsemixer: logits further than 2 * jitter_epsilon below the best, relative to
                                ///< max(|logit|, best), do not count in a softmax; as it is with other functions

  bool operator==(const RouterConfig&) const = default;
};

/// Throws InvalidArgument with one sentence on the first rule the configuration breaks.
FLASHMOE_API void validate(const RouterConfig& config);

/// Routes of a batch from its logits.
///   logits          [num_tokens][num_experts] fp32
///   selection_bias  [num_experts] fp32 added to scores for selection only (sigmoid_grouped), or null
///   topk_ids        [num_tokens][top_k] out; in order of falling selection score (logit, or score + bias)
///   topk_weights    [num_tokens][top_k] out
/// Arithmetic in double, one rounding to fp32 at the end. num_tokens may be 0. Throws InvalidArgument when the
/// configuration breaks a rule, num_tokens is negative, or another function is given a selection bias.
FLASHMOE_API void route_logits(const RouterConfig& config, std::int64_t num_tokens, const float* logits,
                               const float* selection_bias, std::int32_t* topk_ids, float* topk_weights);

/// What a checkpoint stores of a router.
struct RouterParameters {
  int hidden = 0;
  const void* weight = nullptr;           // [num_experts][hidden] of weight_dtype, or null: the router takes logits only
  const float* bias = nullptr;            // [num_experts] or null, added to the logits
  const float* selection_bias = nullptr;  // [num_experts] or null, see route_logits()
  DType weight_dtype = DType::fp32;
};

/// Where a router runs, and so where its parameters and the tensors of its calls lie.
struct RouterPlace {
  BackendKind backend = BackendKind::cpu;
  int device = 0;  ///< backend cuda: the GPU
};

class RouterEngine;

/// A router with its parameters. Immutable, so safe from any thread; copies share the parameters.
///
/// Backend cpu copies the parameters, and sums logits in double. Backend cuda uses them where they lie, unchanged and
/// alive as long as the router; a call is one launch on `stream` (a cudaStream_t; null: the default stream), returns at
/// once, allocates nothing and may be captured. It sums logits in fp32 in an order that depends on hidden alone, so a
/// token's routes do not depend on the rest of the batch. It takes at most 1024 experts in at most 32 groups, x and
/// weight of one dtype (bf16, fp16 or fp32) in memory aligned to 16 bytes, and a hidden that is a multiple of 8.
class FLASHMOE_API Router {
 public:
  /// Throws InvalidArgument when the configuration breaks a rule, or a parameter does not go with it or with the place;
  /// CudaError as require_backend(), and for a device that this process does not see.
  explicit Router(const RouterConfig& config, const RouterParameters& parameters = {}, const RouterPlace& place = {});

  /// Routes of hidden states: logits = x W^T + bias, then route_logits().
  ///   x [num_tokens][hidden] of `dtype`; topk_ids, topk_weights [num_tokens][top_k] out
  /// Throws InvalidArgument when the router was made without `weight`, a pointer is null, not aligned, or not of the
  /// place's memory, or the place does not take the dtype.
  void route(DType dtype, ConstRows x, std::int32_t* topk_ids, float* topk_weights, void* stream = nullptr) const;

  /// Routes of logits that somebody else computed: [num_tokens][num_experts] fp32.
  void route_logits(std::int64_t num_tokens, const float* logits, std::int32_t* topk_ids, float* topk_weights,
                    void* stream = nullptr) const;

  const RouterConfig& config() const { return config_; }
  const RouterPlace& place() const { return place_; }

 private:
  RouterConfig config_;
  RouterPlace place_;
  bool has_weight_ = false;
  std::shared_ptr<const RouterEngine> engine_;
};

}  // namespace flashmoe
