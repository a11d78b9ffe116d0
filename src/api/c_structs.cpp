#include "api/c_structs.hpp"

#include "api/c_abi.hpp"

namespace flashmoe {

namespace {

// The header's constants are the C++ enumerators.
template <class Enum>
constexpr bool same(int constant, Enum enumerator) {
  return constant == static_cast<int>(enumerator);
}
static_assert(same(FLASHMOE_BF16, DType::bf16) && same(FLASHMOE_FP16, DType::fp16) && same(FLASHMOE_TF32, DType::tf32) &&
              same(FLASHMOE_FP32, DType::fp32) && same(FLASHMOE_FP64, DType::fp64));
static_assert(same(FLASHMOE_SILU, Activation::silu) && same(FLASHMOE_GELU_ERF, Activation::gelu_erf) &&
              same(FLASHMOE_GELU_TANH, Activation::gelu_tanh) && same(FLASHMOE_RELU, Activation::relu) &&
              same(FLASHMOE_RELU_SQUARED, Activation::relu_squared) && same(FLASHMOE_IDENTITY, Activation::identity) &&
              same(FLASHMOE_SWIGLU_CLAMPED, Activation::swiglu_clamped));
static_assert(same(FLASHMOE_WIRE_AUTOMATIC, WireForm::automatic) && same(FLASHMOE_WIRE_COUNTED, WireForm::counted) &&
              same(FLASHMOE_WIRE_LINED, WireForm::lined));
static_assert(same(FLASHMOE_RESULT_AUTOMATIC, ResultForm::automatic) &&
              same(FLASHMOE_RESULT_PER_ROUTE, ResultForm::per_route) &&
              same(FLASHMOE_RESULT_PRE_REDUCED, ResultForm::pre_reduced));
static_assert(same(FLASHMOE_ROUTER_SOFTMAX_TOPK, RouterFunction::softmax_topk) &&
              same(FLASHMOE_ROUTER_TOPK_SOFTMAX, RouterFunction::topk_softmax) &&
              same(FLASHMOE_ROUTER_SIGMOID_GROUPED, RouterFunction::sigmoid_grouped) &&
              same(FLASHMOE_ROUTER_SIGMOID_TOPK, RouterFunction::sigmoid_topk) &&
              same(FLASHMOE_ROUTER_SOFTMAX_GROUP_LIMITED, RouterFunction::softmax_group_limited) &&
              same(FLASHMOE_ROUTER_SPARSEMIXER, RouterFunction::sparsemixer));
static_assert(same(FLASHMOE_BACKEND_CPU, BackendKind::cpu) && same(FLASHMOE_BACKEND_CUDA, BackendKind::cuda));

}  // namespace

flashmoe_problem to_c(const Problem& problem) {
  return {.struct_size = sizeof(flashmoe_problem),
          .num_ranks = problem.num_ranks,
          .hidden = problem.hidden,
          .intermediate = problem.intermediate,
          .num_experts = problem.num_experts,
          .top_k = problem.top_k,
          .dtype = static_cast<int>(problem.dtype),
          .max_tokens = problem.max_tokens,
          .activation = static_cast<int>(problem.activation),
          .gated = problem.gated,
          .up_bias = problem.up_bias,
          .down_bias = problem.down_bias,
          .weight_on_input = problem.weight_on_input,
          .batch_invariant = problem.batch_invariant,
          .swiglu_alpha = problem.swiglu_alpha,
          .swiglu_limit = problem.swiglu_limit,
          .wave_tokens = problem.wave_tokens,
          .wave_ring = problem.wave_ring,
          .wire_form = static_cast<int>(problem.wire_form),
          .result_form = static_cast<int>(problem.result_form)};
}

flashmoe_router_config to_c(const RouterConfig& config) {
  return {.struct_size = sizeof(flashmoe_router_config),
          .function = static_cast<int>(config.function),
          .num_experts = config.num_experts,
          .top_k = config.top_k,
          .renormalize = config.renormalize,
          .scaling_factor = config.scaling_factor,
          .num_groups = config.num_groups,
          .topk_groups = config.topk_groups,
          .jitter_epsilon = config.jitter_epsilon};
}

flashmoe_router_parameters to_c(const RouterParameters& parameters) {
  return {.struct_size = sizeof(flashmoe_router_parameters),
          .hidden = parameters.hidden,
          .weight = parameters.weight,
          .bias = parameters.bias,
          .selection_bias = parameters.selection_bias,
          .weight_dtype = static_cast<int>(parameters.weight_dtype),
          .backend = FLASHMOE_BACKEND_CPU,
          .device = 0};
}

flashmoe_group_options to_c(const GroupOptions& options) {
  return {.struct_size = sizeof(flashmoe_group_options),
          .backend = static_cast<int>(options.backend),
          .num_dispatchers = options.num_dispatchers,
          .num_processors = options.num_processors,
          .num_threads = options.num_threads,
          .deadline_seconds = options.deadline_seconds,
          .meeting_seconds = options.meeting_seconds,
          .first_device = options.first_device};
}

Problem read_problem(const flashmoe_problem* problem) {
  const flashmoe_problem c = read_struct("problem", problem, to_c(Problem{}));
  return {.num_ranks = c.num_ranks,
          .hidden = c.hidden,
          .intermediate = c.intermediate,
          .num_experts = c.num_experts,
          .top_k = c.top_k,
          .max_tokens = c.max_tokens,
          .dtype = to_enum<DType>("dtype", c.dtype),
          .activation = to_enum<Activation>("activation", c.activation),
          .gated = to_bool("gated", c.gated),
          .up_bias = to_bool("up_bias", c.up_bias),
          .down_bias = to_bool("down_bias", c.down_bias),
          .weight_on_input = to_bool("weight_on_input", c.weight_on_input),
          .swiglu_alpha = c.swiglu_alpha,
          .swiglu_limit = c.swiglu_limit,
          .wire_form = to_enum<WireForm>("wire_form", c.wire_form),
          .result_form = to_enum<ResultForm>("result_form", c.result_form),
          .wave_tokens = c.wave_tokens,
          .wave_ring = c.wave_ring,
          .batch_invariant = to_bool("batch_invariant", c.batch_invariant)};
}

RouterConfig read_router_config(const flashmoe_router_config* config) {
  const flashmoe_router_config c = read_struct("router_config", config, to_c(RouterConfig{}));
  return {.function = to_enum<RouterFunction>("router function", c.function),
          .num_experts = c.num_experts,
          .top_k = c.top_k,
          .renormalize = to_bool("renormalize", c.renormalize),
          .scaling_factor = c.scaling_factor,
          .num_groups = c.num_groups,
          .topk_groups = c.topk_groups,
          .jitter_epsilon = c.jitter_epsilon};
}

RouterParameters read_router_parameters(const flashmoe_router_parameters* parameters) {
  if (parameters == nullptr) return {};
  const flashmoe_router_parameters c = read_struct("router_parameters", parameters, to_c(RouterParameters{}));
  return {.hidden = c.hidden,
          .weight = c.weight,
          .bias = c.bias,
          .selection_bias = c.selection_bias,
          .weight_dtype = to_enum<DType>("weight_dtype", c.weight_dtype)};
}

RouterPlace read_router_place(const flashmoe_router_parameters* parameters) {
  if (parameters == nullptr) return {};
  const flashmoe_router_parameters c = read_struct("router_parameters", parameters, to_c(RouterParameters{}));
  return {.backend = to_enum<BackendKind>("backend", c.backend), .device = c.device};
}

GroupOptions read_group_options(const flashmoe_group_options* options) {
  if (options == nullptr) return {};
  const flashmoe_group_options c = read_struct("group_options", options, to_c(GroupOptions{}));
  return {.backend = to_enum<BackendKind>("backend", c.backend),
          .first_device = c.first_device,
          .deadline_seconds = c.deadline_seconds,
          .meeting_seconds = c.meeting_seconds,
          .num_dispatchers = c.num_dispatchers,
          .num_processors = c.num_processors,
          .num_threads = c.num_threads};
}

WeightsView read_weights(const flashmoe_weights* weights) {
  const flashmoe_weights c = read_struct("weights", weights, {});
  return {.up = c.up, .down = c.down, .up_bias = c.up_bias, .down_bias = c.down_bias};
}

}  // namespace flashmoe
