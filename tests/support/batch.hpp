// One rank's tensors of a call, made from a seed, with outputs poisoned.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "cpu/reference.hpp"
#include "flashmoe/problem.hpp"
#include "flashmoe/views.hpp"
#include "support/dense_experts.hpp"

namespace flashmoe::test {

/// How routes are drawn.
enum class Routing {
  distinct,    ///< top_k different experts a token
  any,         ///< repeated experts, a tenth of the routes masked
  all_to_one,  ///< experts 0..top_k-1 for every token
  last_rank,   ///< experts of the last rank only, repeated
  masked,      ///< no route at all
};

struct Batch {
  std::int64_t num_tokens = 0;
  std::vector<char> x, y;                 // [num_tokens][hidden]
  std::vector<std::int32_t> topk_ids;     // [num_tokens][top_k]
  std::vector<float> topk_weights;        // [num_tokens][top_k]

  ConstRows x_view() const { return {x.data(), num_tokens}; }
  Rows y_view() { return {y.data(), num_tokens}; }
  RoutingView routing() const { return {topk_ids.data(), topk_weights.data()}; }

  /// Fills y with NaN (all bits set).
  void poison() { std::fill(y.begin(), y.end(), static_cast<char>(0xff)); }

  std::vector<double> output(const Problem& problem) const {
    std::vector<double> values(static_cast<std::size_t>(num_tokens) * static_cast<std::size_t>(problem.hidden));
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = load_element(problem.dtype, y.data(), static_cast<std::int64_t>(i));
    }
    return values;
  }
};

inline std::int32_t draw_expert(const Problem& problem, const CounterRng& rng, std::uint64_t index, Routing routing) {
  const auto experts = static_cast<std::uint64_t>(problem.num_experts);
  switch (routing) {
    case Routing::distinct:
    case Routing::any: return static_cast<std::int32_t>(rng.below(index, experts));
    case Routing::all_to_one: return static_cast<std::int32_t>(index % static_cast<std::uint64_t>(problem.top_k));
    case Routing::last_rank: {
      const auto local = static_cast<std::uint64_t>(problem.num_local_experts());
      return static_cast<std::int32_t>(experts - 1 - rng.below(index, local));
    }
    case Routing::masked: return -1;
  }
  return -1;
}

inline Batch make_batch(const Problem& problem, std::int64_t num_tokens, std::uint64_t seed,
                        Routing routing = Routing::distinct, Values values = Values::real) {
  Batch batch;
  batch.num_tokens = num_tokens;
  batch.x = random_elements(problem.dtype, num_tokens * problem.hidden, seed, 101, values, 1.7);
  batch.y.resize(batch.x.size());
  batch.poison();
  const CounterRng ids(seed, 102);
  const CounterRng masks(seed, 103);
  const CounterRng weights(seed, 104);
  std::uint64_t draws = 0;
  for (std::int64_t token = 0; token < num_tokens; ++token) {
    for (int choice = 0; choice < problem.top_k; ++choice) {
      const auto route = static_cast<std::uint64_t>(token * problem.top_k + choice);
      std::int32_t expert = draw_expert(problem, ids, routing == Routing::all_to_one ? route : draws++, routing);
      const auto repeated = [&] {
        for (int before = 0; before < choice; ++before) {
          if (batch.topk_ids[static_cast<std::size_t>(token * problem.top_k + before)] == expert) return true;
        }
        return false;
      };
      while (routing == Routing::distinct && repeated()) expert = draw_expert(problem, ids, draws++, routing);
      if (routing == Routing::any && masks.below(route, 10) == 0) expert = -1;
      batch.topk_ids.push_back(expert);
      batch.topk_weights.push_back(values == Values::small_integers
                                       ? static_cast<float>(weights.below(route, 3)) - 1.0f
                                       : static_cast<float>(weights.uniform(route)));
    }
  }
  return batch;
}

inline std::vector<Batch> make_batches(const Problem& problem, const std::vector<std::int64_t>& tokens,
                                       std::uint64_t seed, Routing routing = Routing::distinct,
                                       Values values = Values::real) {
  std::vector<Batch> batches;
  for (std::size_t rank = 0; rank < tokens.size(); ++rank) {
    batches.push_back(make_batch(problem, tokens[rank], seed * 64 + rank, routing, values));
  }
  return batches;
}

/// Tokens [begin, end) of a batch as a batch of their own.
inline Batch slice(const Problem& problem, const Batch& whole, std::int64_t begin, std::int64_t end) {
  const auto row = static_cast<std::ptrdiff_t>(problem.hidden * static_cast<std::int64_t>(dtype_bytes(problem.dtype)));
  const auto k = static_cast<std::ptrdiff_t>(problem.top_k);
  const auto cut = [&](const auto& values, std::ptrdiff_t width) {
    return std::decay_t<decltype(values)>(values.begin() + begin * width, values.begin() + end * width);
  };
  return {.num_tokens = end - begin, .x = cut(whole.x, row), .y = cut(whole.y, row),
          .topk_ids = cut(whole.topk_ids, k), .topk_weights = cut(whole.topk_weights, k)};
}

/// Batches of all tokens in rank order, one after the other.
inline Batch join(const std::vector<Batch>& batches) {
  Batch whole;
  for (const Batch& batch : batches) {
    whole.num_tokens += batch.num_tokens;
    whole.x.insert(whole.x.end(), batch.x.begin(), batch.x.end());
    whole.y.insert(whole.y.end(), batch.y.begin(), batch.y.end());
    whole.topk_ids.insert(whole.topk_ids.end(), batch.topk_ids.begin(), batch.topk_ids.end());
    whole.topk_weights.insert(whole.topk_weights.end(), batch.topk_weights.begin(), batch.topk_weights.end());
  }
  return whole;
}

using reference::error_bar;
using reference::tolerance;

/// ||value - wanted|| / ||wanted|| over what error_bar() allows: right when at most 1.
inline double error_in_bars(const Problem& problem, const Batch& batch, const std::vector<double>& wanted) {
  if (wanted.empty()) return 0.0;
  const auto num_elements = static_cast<std::int64_t>(wanted.size());
  return reference::relative_l2(batch.output(problem), wanted) / error_bar(problem.dtype, num_elements);
}

}  // namespace flashmoe::test
