#include "flashmoe/problem.hpp"

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <limits>
#include <string_view>
#include <type_traits>

#include "core/enumerators.hpp"
#include "flashmoe/error.hpp"
#include "flashmoe/version.hpp"

namespace flashmoe {
namespace {

constexpr int kElementMultiple = 8;  // rows and columns of every engine are moved in units of 8 elements

// Sizes within the limits never overflow 64 bits, not even counted in bytes of fp64 with gate and up side by side.
constexpr double kInt64Max = static_cast<double>(std::numeric_limits<std::int64_t>::max());
static_assert(8.0 * Limits::max_tokens * Limits::top_k * Limits::hidden < kInt64Max);
static_assert(16.0 * Limits::max_tokens * Limits::top_k * Limits::intermediate < kInt64Max);
static_assert(16.0 * Limits::num_experts * Limits::intermediate * Limits::hidden < kInt64Max);
static_assert(Limits::hidden % kElementMultiple == 0 && Limits::intermediate % kElementMultiple == 0);

constexpr std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

void require_between(std::string_view name, std::int64_t got, std::int64_t low, std::int64_t high,
                     std::string_view remedy) {
  if (got >= low && got <= high) return;
  throw InvalidArgument(fmt::format("{} ({}) must be between {} and {}: {}", name, got, low, high, remedy));
}

void require_multiple(std::string_view name, int got) {
  if (got % kElementMultiple == 0) return;
  throw InvalidArgument(fmt::format("{} ({}) must be a multiple of {}: pad with zeros to {}", name, got,
                                    kElementMultiple, round_up(got, kElementMultiple)));
}

template <class Range, class Enum>
void require_enumerator(std::string_view name, const Range& enumerators, Enum got) {
  if (is_enumerator(enumerators, got)) return;
  throw InvalidArgument(fmt::format("{} (number {}) must be one of {}: use a named enumerator", name,
                                    static_cast<int>(got), names_of(enumerators)));
}

/// "1, 2, 5 or 10": rank counts that divide the experts evenly.
std::string rank_counts(int num_experts) {
  std::string counts;
  std::string last;
  for (int ranks = 1; ranks <= Limits::num_ranks; ++ranks) {
    if (num_experts % ranks != 0) continue;
    if (!last.empty()) counts += counts.empty() ? last : ", " + last;
    last = std::to_string(ranks);
  }
  return counts.empty() ? last : counts + " or " + last;
}

void require_even_split(const Problem& problem) {
  if (problem.num_experts % problem.num_ranks == 0) return;
  const std::int64_t padded = round_up(problem.num_experts, problem.num_ranks);
  const std::string padding = padded > Limits::num_experts
                                  ? std::string()
                                  : fmt::format("pad the layer to {} experts with {} that no token picks, or ", padded,
                                                padded - problem.num_experts);
  const std::string counts = rank_counts(problem.num_experts);
  throw InvalidArgument(fmt::format("num_experts ({}) must be a multiple of num_ranks ({}): {}use {} rank{}",
                                    problem.num_experts, problem.num_ranks, padding, counts, counts == "1" ? "" : "s"));
}

void validate_shape(const Problem& problem) {
  require_between("num_ranks", problem.num_ranks, 1, Limits::num_ranks,
                  "give the number of ranks that share the experts");
  require_between("hidden", problem.hidden, kElementMultiple, Limits::hidden, "give the elements of one token row");
  require_multiple("hidden", problem.hidden);
  require_between("intermediate", problem.intermediate, kElementMultiple, Limits::intermediate,
                  "give the inner width of one expert in elements");
  require_multiple("intermediate", problem.intermediate);
  require_between("num_experts", problem.num_experts, 1, Limits::num_experts,
                  "give the routed experts of all ranks together");
  require_even_split(problem);
  require_between("top_k", problem.top_k, 1, Limits::top_k, "give the experts one token takes");
  if (problem.top_k > problem.num_experts) {
    throw InvalidArgument(fmt::format("top_k ({}) must be at most num_experts ({}): lower top_k to {}", problem.top_k,
                                      problem.num_experts, problem.num_experts));
  }
  require_between("max_tokens", problem.max_tokens, 1, Limits::max_tokens,
                  "give the most tokens one rank brings to one call, and split longer batches into several calls");
}

void validate_arithmetic(const Problem& problem) {
  require_enumerator("dtype", kDTypes, problem.dtype);
  require_enumerator("activation", kActivations, problem.activation);
  if (problem.activation == Activation::swiglu_clamped && !problem.gated) {
    throw InvalidArgument(
        "activation (swiglu_clamped) must be used with gated experts: set gated, or choose another activation");
  }
  if (!std::isfinite(problem.swiglu_alpha)) {
    throw InvalidArgument(fmt::format("swiglu_alpha ({}) must be finite: use {} unless the model says otherwise",
                                      problem.swiglu_alpha, Problem{}.swiglu_alpha));
  }
  if (!(problem.swiglu_limit > 0) || !std::isfinite(problem.swiglu_limit)) {
    throw InvalidArgument(
        fmt::format("swiglu_limit ({}) must be positive and finite: use {} unless the model says otherwise",
                    problem.swiglu_limit, Problem{}.swiglu_limit));
  }
}

void validate_plan_choices(const Problem& problem) {
  require_enumerator("wire_form", kWireForms, problem.wire_form);
  require_enumerator("result_form", kResultForms, problem.result_form);
  require_between("wave_tokens", problem.wave_tokens, 0, Limits::wave_tokens,
                  "give the tokens of one wave, or 0 to have it planned");
  require_between("wave_ring", problem.wave_ring, 0, Limits::wave_ring,
                  "give the waves in flight per source, or 0 to have it planned");
  if (problem.result_form == ResultForm::pre_reduced && problem.batch_invariant) {
    throw InvalidArgument(
        "result_form (pre_reduced) must not be combined with batch_invariant: use per_route or auto, or turn "
        "batch_invariant off");
  }
  if (problem.wire_form != WireForm::lined) return;
  if (problem.result_form == ResultForm::pre_reduced) {
    throw InvalidArgument(
        "result_form (pre_reduced) must not be combined with wire_form lined: use wire_form counted or auto, or "
        "result_form per_route");
  }
  if (problem.max_tokens > Limits::lined_tokens) {
    throw InvalidArgument(fmt::format("max_tokens ({}) must be at most {} with wire_form lined: use counted or auto",
                                      problem.max_tokens, Limits::lined_tokens));
  }
}

/// Calls visit(name, value) for every field. A field added to Problem and not listed here does not compile.
template <class Visit>
void for_each_field(const Problem& problem, Visit&& visit) {
  const auto& [num_ranks, hidden, intermediate, num_experts, top_k, max_tokens, dtype, activation, gated, up_bias,
               down_bias, weight_on_input, swiglu_alpha, swiglu_limit, wire_form, result_form, wave_tokens, wave_ring,
               batch_invariant] = problem;
  visit("num_ranks", num_ranks);
  visit("hidden", hidden);
  visit("intermediate", intermediate);
  visit("num_experts", num_experts);
  visit("top_k", top_k);
  visit("max_tokens", max_tokens);
  visit("dtype", dtype);
  visit("activation", activation);
  visit("gated", gated);
  visit("up_bias", up_bias);
  visit("down_bias", down_bias);
  visit("weight_on_input", weight_on_input);
  visit("swiglu_alpha", swiglu_alpha);
  visit("swiglu_limit", swiglu_limit);
  visit("wire_form", wire_form);
  visit("result_form", result_form);
  visit("wave_tokens", wave_tokens);
  visit("wave_ring", wave_ring);
  visit("batch_invariant", batch_invariant);
}

/// One step of a 64-bit hash: the finaliser of MurmurHash3 (Appleby, public domain) over the running value.
constexpr std::uint64_t mix(std::uint64_t running, std::uint64_t word) {
  std::uint64_t x = running ^ (word + 0x9e3779b97f4a7c15u + (running << 6) + (running >> 2));
  x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdu;
  x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53u;
  return x ^ (x >> 33);
}

}  // namespace

void validate(const Problem& problem) {
  validate_shape(problem);
  validate_arithmetic(problem);
  validate_plan_choices(problem);
}

std::uint64_t hash(const Problem& problem) {
  std::uint64_t running = 0;
  for (const char c : std::string_view(version())) running = mix(running, static_cast<unsigned char>(c));
  for_each_field(problem, [&running](std::string_view, auto value) {
    if constexpr (std::is_floating_point_v<decltype(value)>) {
      running = mix(running, std::bit_cast<std::uint64_t>(value + 0.0));  // equal problems hash equal: -0.0 becomes 0.0
    } else {
      running = mix(running, static_cast<std::uint64_t>(value));
    }
  });
  return running;
}

std::string to_string(const Problem& problem) {
  std::string text;
  for_each_field(problem, [&text](std::string_view name, auto value) {
    if (!text.empty()) text += ' ';
    if constexpr (std::is_enum_v<decltype(value)>) {
      text += fmt::format("{}={}", name, to_string(value));
    } else {
      text += fmt::format("{}={}", name, value);
    }
  });
  return text;
}

}  // namespace flashmoe
