// Expert parameters in plain memory, for tests.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/counter_rng.hpp"
#include "core/expert_source.hpp"
#include "core/numeric.hpp"
#include "flashmoe/problem.hpp"

namespace flashmoe::test {

/// What random tensors hold.
enum class Values {
  real,            ///< uniform reals, weights scaled by 1 / sqrt(fan-in)
  small_integers,  ///< -2..2: with identity or relu every sum is exact in fp32
};

inline double draw(const CounterRng& rng, std::uint64_t index, Values values, double scale) {
  if (values == Values::small_integers) return static_cast<double>(rng.below(index, 5)) - 2.0;
  return (2.0 * rng.uniform(index) - 1.0) * scale;
}

inline std::vector<char> random_elements(DType dtype, std::int64_t count, std::uint64_t seed, std::uint64_t stream,
                                         Values values, double scale) {
  const CounterRng rng(seed, stream);
  std::vector<char> data(static_cast<std::size_t>(count) * dtype_bytes(dtype));
  for (std::int64_t i = 0; i < count; ++i) {
    store_element(dtype, data.data(), i, draw(rng, static_cast<std::uint64_t>(i), values, scale));
  }
  return data;
}

/// All experts of a problem, random.
class DenseExperts : public ExpertSource {
 public:
  DenseExperts(const Problem& problem, std::uint64_t seed, Values values = Values::real) {
    const std::int64_t up = std::int64_t{problem.up_columns()} * problem.hidden;
    const std::int64_t down = std::int64_t{problem.hidden} * problem.intermediate;
    for (int e = 0; e < problem.num_experts; ++e) {
      const auto stream = static_cast<std::uint64_t>(e) * 4;
      auto data = std::make_shared<Data>();
      const double up_scale = 1.7 / std::sqrt(static_cast<double>(problem.hidden));
      const double down_scale = 1.7 / std::sqrt(static_cast<double>(problem.intermediate));
      data->up = random_elements(problem.dtype, up, seed, stream, values, up_scale);
      data->down = random_elements(problem.dtype, down, seed, stream + 1, values, down_scale);
      data->parameters = {data->up.data(), data->down.data(), nullptr, nullptr};
      if (problem.up_bias) {
        data->up_bias = random_floats(problem.up_columns(), seed, stream + 2, values);
        data->parameters.up_bias = data->up_bias.data();
      }
      if (problem.down_bias) {
        data->down_bias = random_floats(problem.hidden, seed, stream + 3, values);
        data->parameters.down_bias = data->down_bias.data();
      }
      experts_.push_back(std::shared_ptr<const ExpertParameters>(data, &data->parameters));
    }
  }

  std::shared_ptr<const ExpertParameters> expert(int expert_index) const override {
    return experts_.at(static_cast<std::size_t>(expert_index));
  }

 private:
  struct Data {
    std::vector<char> up, down;
    std::vector<float> up_bias, down_bias;
    ExpertParameters parameters;
  };

  static std::vector<float> random_floats(int count, std::uint64_t seed, std::uint64_t stream, Values values) {
    const CounterRng rng(seed, stream);
    std::vector<float> data(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<float>(draw(rng, i, values, 0.2));
    return data;
  }

  std::vector<std::shared_ptr<const ExpertParameters>> experts_;
};

}  // namespace flashmoe::test
