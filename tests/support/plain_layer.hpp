// A layer written out as plain numbers: experts and tokens for tests of the reference, and the layer's formula taken
// literally, in long double and one element at a time.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "core/counter_rng.hpp"
#include "core/expert_source.hpp"
#include "core/numeric.hpp"
#include "cpu/reference.hpp"
#include "flashmoe/problem.hpp"

namespace flashmoe::test::plain {

// One expert as plain numbers, stored as the problem wants them.
struct Expert {
  std::vector<double> up;         // [up_columns][hidden]
  std::vector<double> down;       // [hidden][intermediate]
  std::vector<float> up_bias;     // [up_columns]
  std::vector<float> down_bias;   // [hidden]
};

inline std::vector<char> stored(DType dtype, const std::vector<double>& values) {
  std::vector<char> data(values.size() * dtype_bytes(dtype));
  for (std::size_t i = 0; i < values.size(); ++i) store_element(dtype, data.data(), static_cast<std::int64_t>(i), values[i]);
  return data;
}

class Experts : public ExpertSource {
 public:
  Experts(const Problem& problem, std::vector<Expert> experts) {
    for (Expert& expert : experts) {
      auto owned = std::make_shared<Owned>();
      owned->biases = std::move(expert);
      owned->up = stored(problem.dtype, owned->biases.up);
      owned->down = stored(problem.dtype, owned->biases.down);
      owned->parameters = {owned->up.data(), owned->down.data(), problem.up_bias ? owned->biases.up_bias.data() : nullptr,
                           problem.down_bias ? owned->biases.down_bias.data() : nullptr};
      experts_.emplace_back(owned, &owned->parameters);
    }
  }

  std::shared_ptr<const ExpertParameters> expert(int expert_index) const override {
    {
      const std::lock_guard lock(mutex_);
      asked_.push_back(expert_index);
    }
    return experts_.at(static_cast<std::size_t>(expert_index));
  }

  /// Every call of expert() so far.
  std::vector<int> asked() const { return asked_; }

 private:
  struct Owned {
    std::vector<char> up, down;
    Expert biases;
    ExpertParameters parameters;
  };
  std::vector<std::shared_ptr<const ExpertParameters>> experts_;
  mutable std::mutex mutex_;
  mutable std::vector<int> asked_;
};

struct Tokens {
  std::vector<double> x;                  // [num_tokens][hidden]
  std::vector<std::int32_t> topk_ids;     // [num_tokens][top_k]
  std::vector<float> topk_weights;        // [num_tokens][top_k]
};

inline std::vector<double> run(const Problem& problem, const ExpertSource& experts, const Tokens& tokens,
                        const std::vector<std::int64_t>& rows = {}, int num_threads = 1) {
  const std::vector<char> x = stored(problem.dtype, tokens.x);
  return reference::layer(problem, experts, {x.data(), static_cast<std::int64_t>(tokens.x.size()) / problem.hidden},
                          {tokens.topk_ids.data(), tokens.topk_weights.data()}, rows, num_threads);
}

inline std::vector<double> random_values(std::size_t count, std::uint64_t seed, double scale = 1.0) {
  std::vector<double> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = (2.0 * CounterRng(seed, 0).uniform(i) - 1.0) * scale;
  return values;
}

inline std::vector<float> random_floats(std::size_t count, std::uint64_t seed) {
  const std::vector<double> values = random_values(count, seed);
  return {values.begin(), values.end()};
}

inline std::vector<Expert> random_experts(const Problem& problem, std::uint64_t seed) {
  std::vector<Expert> experts;
  for (int e = 0; e < problem.num_experts; ++e) {
    const std::uint64_t base = seed * 1000003 + static_cast<std::uint64_t>(e) * 4;
    const auto columns = static_cast<std::size_t>(problem.up_columns());
    const auto hidden = static_cast<std::size_t>(problem.hidden);
    experts.push_back({random_values(columns * hidden, base), random_values(hidden * problem.intermediate, base + 1),
                       random_floats(columns, base + 2), random_floats(hidden, base + 3)});
  }
  return experts;
}

// Random ids, repeats allowed, about one in eight masked.
inline Tokens random_tokens(const Problem& problem, std::int64_t num_tokens, std::uint64_t seed) {
  Tokens tokens{random_values(static_cast<std::size_t>(num_tokens * problem.hidden), seed), {}, {}};
  const CounterRng rng(seed, 1);
  for (std::uint64_t route = 0; route < static_cast<std::uint64_t>(num_tokens * problem.top_k); ++route) {
    const bool masked = rng.below(2 * route, 8) == 0;
    const auto expert = static_cast<std::int32_t>(rng.below(2 * route + 1, static_cast<std::uint64_t>(problem.num_experts)));
    tokens.topk_ids.push_back(masked ? -1 : expert);
    tokens.topk_weights.push_back(static_cast<float>(rng.uniform(1000000 + route)));
  }
  return tokens;
}

inline long double activated(Activation activation, long double x) {
  switch (activation) {
    case Activation::silu: return x / (1.0L + std::exp(-x));
    case Activation::gelu_erf: return 0.5L * x * (1.0L + std::erf(x / std::sqrt(2.0L)));
    case Activation::gelu_tanh:
      return 0.5L * x * (1.0L + std::tanh(std::sqrt(2.0L / std::acos(-1.0L)) * (x + 0.044715L * x * x * x)));
    case Activation::relu: return x > 0 ? x : 0;
    case Activation::relu_squared: return x > 0 ? x * x : 0;
    default: return x;
  }
}

// One token the long way: straight from problem.hpp, element by element, in long double.
inline std::vector<double> direct(const Problem& problem, const std::vector<Expert>& experts, const Tokens& tokens,
                           std::int64_t token) {
  const auto stored_value = [&](double value) {
    double memory = 0.0;
    store_element(problem.dtype, &memory, 0, value);
    return static_cast<long double>(load_element(problem.dtype, &memory, 0));
  };
  std::vector<double> y;
  for (int column = 0; column < problem.hidden; ++column) {
    long double sum = 0;
    for (int choice = 0; choice < problem.top_k; ++choice) {
      const std::int64_t route = token * problem.top_k + choice;
      if (tokens.topk_ids[route] == -1) continue;
      const Expert& expert = experts.at(static_cast<std::size_t>(tokens.topk_ids[route]));
      const long double weight = tokens.topk_weights[route];
      const auto product = [&](int row) {
        long double dot = 0;
        for (int i = 0; i < problem.hidden; ++i) {
          dot += stored_value(tokens.x[token * problem.hidden + i]) * stored_value(expert.up[row * problem.hidden + i]);
        }
        return (problem.weight_on_input ? weight * dot : dot) + (problem.up_bias ? expert.up_bias[row] : 0.0L);
      };
      long double result = problem.down_bias ? expert.down_bias[column] : 0.0L;
      for (int i = 0; i < problem.intermediate; ++i) {
        long double h = 0;
        if (!problem.gated) {
          h = activated(problem.activation, product(i));
        } else if (problem.activation == Activation::swiglu_clamped) {
          const long double limit = problem.swiglu_limit;
          const long double gate = std::min(product(i), limit);
          const long double up = std::clamp(product(problem.intermediate + i), -limit, limit);
          h = gate / (1 + std::exp(-static_cast<long double>(problem.swiglu_alpha) * gate)) * (up + 1);
        } else {
          h = activated(problem.activation, product(i)) * product(problem.intermediate + i);
        }
        result += h * stored_value(expert.down[column * problem.intermediate + i]);
      }
      sum += problem.weight_on_input ? result : weight * result;
    }
    y.push_back(static_cast<double>(sum));
  }
  return y;
}

inline Problem small_problem() {
  return {.hidden = 16, .intermediate = 8, .num_experts = 5, .top_k = 3, .max_tokens = 64, .dtype = DType::fp64};
}

}  // namespace flashmoe::test::plain
