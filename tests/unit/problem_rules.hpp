// One broken Problem per rule of validate(), with the exact sentence it earns. The C++ test, the C ABI test and the
// command line test all read this table.
#pragma once

#include <limits>
#include <string>
#include <vector>

#include "flashmoe/problem.hpp"

namespace flashmoe {

/// A problem that breaks no rule.
inline Problem valid_problem() {
  return {.num_ranks = 4, .hidden = 64, .intermediate = 96, .num_experts = 8, .top_k = 2, .max_tokens = 128};
}

struct ProblemRule {
  std::string name;
  Problem problem;
  std::string message;
};

inline std::vector<ProblemRule> problem_rules() {
  std::vector<ProblemRule> rules;
  const auto rule = [&rules](std::string name, std::string message, auto&& breaking) {
    Problem problem = valid_problem();
    breaking(problem);
    rules.push_back({std::move(name), problem, std::move(message)});
  };
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  constexpr double infinity = std::numeric_limits<double>::infinity();

  rule("no_ranks", "num_ranks (0) must be between 1 and 64: give the number of ranks that share the experts",
       [](Problem& p) { p.num_ranks = 0; });
  rule("negative_ranks", "num_ranks (-4) must be between 1 and 64: give the number of ranks that share the experts",
       [](Problem& p) { p.num_ranks = -4; });
  rule("too_many_ranks", "num_ranks (65) must be between 1 and 64: give the number of ranks that share the experts",
       [](Problem& p) { p.num_ranks = 65; });

  rule("no_hidden", "hidden (0) must be between 8 and 65536: give the elements of one token row",
       [](Problem& p) { p.hidden = 0; });
  rule("hidden_too_wide", "hidden (65544) must be between 8 and 65536: give the elements of one token row",
       [](Problem& p) { p.hidden = 65544; });
  rule("hidden_not_a_multiple", "hidden (100) must be a multiple of 8: pad with zeros to 104",
       [](Problem& p) { p.hidden = 100; });
  rule("no_intermediate",
       "intermediate (-8) must be between 8 and 262144: give the inner width of one expert in elements",
       [](Problem& p) { p.intermediate = -8; });
  rule("intermediate_too_wide",
       "intermediate (2147483647) must be between 8 and 262144: give the inner width of one expert in elements",
       [](Problem& p) { p.intermediate = std::numeric_limits<int>::max(); });
  rule("intermediate_not_a_multiple", "intermediate (1407) must be a multiple of 8: pad with zeros to 1408",
       [](Problem& p) { p.intermediate = 1407; });

  rule("no_experts", "num_experts (0) must be between 1 and 4096: give the routed experts of all ranks together",
       [](Problem& p) { p.num_experts = 0; });
  rule("too_many_experts",
       "num_experts (8192) must be between 1 and 4096: give the routed experts of all ranks together",
       [](Problem& p) { p.num_experts = 8192; });
  rule("experts_not_divisible",
       "num_experts (10) must be a multiple of num_ranks (4): pad the layer to 12 experts with 2 that no token picks, "
       "or "
       "use 1, 2, 5 or 10 ranks",
       [](Problem& p) { p.num_experts = 10; });
  rule("prime_experts",
       "num_experts (67) must be a multiple of num_ranks (4): pad the layer to 68 experts with 1 that no token picks, "
       "or "
       "use 1 rank",
       [](Problem& p) { p.num_experts = 67; });
  rule("fewer_experts_than_ranks",
       "num_experts (2) must be a multiple of num_ranks (4): pad the layer to 4 experts with 2 that no token picks, or "
       "use 1 or 2 ranks",
       [](Problem& p) { p.num_experts = 2; });
  rule("padding_passes_the_limit",
       "num_experts (4095) must be a multiple of num_ranks (62): use 1, 3, 5, 7, 9, 13, 15, 21, 35, 39, 45 or 63 ranks",
       [](Problem& p) {
         p.num_experts = 4095;
         p.num_ranks = 62;
       });

  rule("no_choices", "top_k (0) must be between 1 and 32: give the experts one token takes",
       [](Problem& p) { p.top_k = 0; });
  rule("too_many_choices", "top_k (33) must be between 1 and 32: give the experts one token takes", [](Problem& p) {
    p.num_experts = 64;
    p.top_k = 33;
  });
  rule("more_choices_than_experts", "top_k (9) must be at most num_experts (8): lower top_k to 8",
       [](Problem& p) { p.top_k = 9; });

  rule("no_tokens",
       "max_tokens (0) must be between 1 and 4194304: give the most tokens one rank brings to one call, and split "
       "longer "
       "batches into several calls",
       [](Problem& p) { p.max_tokens = 0; });
  rule("too_many_tokens",
       "max_tokens (9223372036854775807) must be between 1 and 4194304: give the most tokens one rank brings to one "
       "call, and split longer batches into several calls",
       [](Problem& p) { p.max_tokens = std::numeric_limits<std::int64_t>::max(); });

  rule("unknown_dtype", "dtype (number 9) must be one of bf16, fp16, tf32, fp32, fp64: use a named enumerator",
       [](Problem& p) { p.dtype = static_cast<DType>(9); });
  rule("unknown_activation",
       "activation (number 7) must be one of silu, gelu, gelu_tanh, relu, relu2, identity, swiglu_clamped: use a named "
       "enumerator",
       [](Problem& p) { p.activation = static_cast<Activation>(7); });
  rule("unknown_wire_form", "wire_form (number 255) must be one of auto, counted, lined: use a named enumerator",
       [](Problem& p) { p.wire_form = static_cast<WireForm>(255); });
  rule("unknown_result_form",
       "result_form (number 3) must be one of auto, per_route, pre_reduced: use a named enumerator",
       [](Problem& p) { p.result_form = static_cast<ResultForm>(3); });

  rule("clamped_swiglu_without_gate",
       "activation (swiglu_clamped) must be used with gated experts: set gated, or choose another activation",
       [](Problem& p) {
         p.activation = Activation::swiglu_clamped;
         p.gated = false;
       });
  rule("alpha_not_a_number", "swiglu_alpha (nan) must be finite: use 1.702 unless the model says otherwise",
       [](Problem& p) { p.swiglu_alpha = nan; });
  rule("alpha_infinite", "swiglu_alpha (-inf) must be finite: use 1.702 unless the model says otherwise",
       [](Problem& p) { p.swiglu_alpha = -infinity; });
  rule("limit_zero", "swiglu_limit (0) must be positive and finite: use 7 unless the model says otherwise",
       [](Problem& p) { p.swiglu_limit = 0; });
  rule("limit_negative", "swiglu_limit (-7) must be positive and finite: use 7 unless the model says otherwise",
       [](Problem& p) { p.swiglu_limit = -7; });
  rule("limit_infinite", "swiglu_limit (inf) must be positive and finite: use 7 unless the model says otherwise",
       [](Problem& p) { p.swiglu_limit = infinity; });
  rule("limit_not_a_number", "swiglu_limit (nan) must be positive and finite: use 7 unless the model says otherwise",
       [](Problem& p) { p.swiglu_limit = nan; });

  rule("wave_tokens_negative",
       "wave_tokens (-1) must be between 0 and 65535: give the tokens of one wave, or 0 to have it planned",
       [](Problem& p) { p.wave_tokens = -1; });
  rule("wave_tokens_too_many",
       "wave_tokens (65536) must be between 0 and 65535: give the tokens of one wave, or 0 to have it planned",
       [](Problem& p) { p.wave_tokens = 65536; });
  rule("wave_ring_negative",
       "wave_ring (-1) must be between 0 and 4: give the waves in flight per source, or 0 to have it planned",
       [](Problem& p) { p.wave_ring = -1; });
  rule("wave_ring_too_long",
       "wave_ring (5) must be between 0 and 4: give the waves in flight per source, or 0 to have it planned",
       [](Problem& p) { p.wave_ring = 5; });
  rule("batch_invariant_pre_reduced",
       "result_form (pre_reduced) must not be combined with batch_invariant: use per_route or auto, or turn "
       "batch_invariant off",
       [](Problem& p) {
         p.result_form = ResultForm::pre_reduced;
         p.batch_invariant = true;
       });
  rule("lined_pre_reduced",
       "result_form (pre_reduced) must not be combined with wire_form lined: use wire_form counted or auto, or "
       "result_form per_route",
       [](Problem& p) {
         p.wire_form = WireForm::lined;
         p.result_form = ResultForm::pre_reduced;
       });
  rule("lined_too_many_tokens", "max_tokens (1025) must be at most 1024 with wire_form lined: use counted or auto",
       [](Problem& p) {
         p.wire_form = WireForm::lined;
         p.max_tokens = 1025;
       });
  return rules;
}

}  // namespace flashmoe
