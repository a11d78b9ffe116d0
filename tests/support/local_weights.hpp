// One rank's experts copied into dense tensors, as a program hands them to a layer.
#pragma once

#include <vector>

#include "core/expert_source.hpp"
#include "flashmoe/problem.hpp"
#include "flashmoe/views.hpp"

namespace flashmoe::test {

class LocalWeights {
 public:
  LocalWeights(const Problem& problem, const ExpertSource& experts, int rank) {
    const std::size_t element = dtype_bytes(problem.dtype);
    const auto hidden = static_cast<std::size_t>(problem.hidden);
    const auto columns = static_cast<std::size_t>(problem.up_columns());
    for (int local = 0; local < problem.num_local_experts(); ++local) {
      const auto expert = experts.expert(rank * problem.num_local_experts() + local);
      append(up_, expert->up, columns * hidden * element);
      append(down_, expert->down, hidden * static_cast<std::size_t>(problem.intermediate) * element);
      if (problem.up_bias) append(up_bias_, expert->up_bias, columns * sizeof(float));
      if (problem.down_bias) append(down_bias_, expert->down_bias, hidden * sizeof(float));
    }
  }

  WeightsView view() const { return {up_.data(), down_.data(), floats(up_bias_), floats(down_bias_)}; }

 private:
  static void append(std::vector<char>& to, const void* from, std::size_t bytes) {
    to.insert(to.end(), static_cast<const char*>(from), static_cast<const char*>(from) + bytes);
  }
  static const float* floats(const std::vector<char>& bytes) {
    return bytes.empty() ? nullptr : reinterpret_cast<const float*>(bytes.data());
  }

  std::vector<char> up_, down_, up_bias_, down_bias_;
};

}  // namespace flashmoe::test
