#include "api/dense_weights.hpp"

#include <fmt/format.h>

#include "api/checks.hpp"
#include "flashmoe/error.hpp"

namespace flashmoe {

namespace {

/// Slice `index` of an array of slices of `count` elements; null of null.
template <class T>
const T* slice(const T* data, int index, std::int64_t count) {
  return data == nullptr ? nullptr : data + std::int64_t{index} * count;
}

void check_bias(const char* name, bool wanted, const float* bias) {
  if (wanted && bias == nullptr) {
    throw InvalidArgument(fmt::format("weights.{0} is null, but the problem has {0}: pass it, or clear problem.{0}", name));
  }
  if (!wanted && bias != nullptr) {
    throw InvalidArgument(fmt::format("weights.{0} is given, but the problem has no {0}: set problem.{0}, or pass null",
                                      name));
  }
}

}  // namespace

void check_weights(const Problem& problem, const WeightsView& weights) {
  const std::size_t element = dtype_bytes(problem.dtype);
  check_pointer("weights.up", weights.up, element);
  check_pointer("weights.down", weights.down, element);
  check_bias("up_bias", problem.up_bias, weights.up_bias);
  check_bias("down_bias", problem.down_bias, weights.down_bias);
  if (problem.up_bias) check_pointer("weights.up_bias", weights.up_bias, sizeof(float));
  if (problem.down_bias) check_pointer("weights.down_bias", weights.down_bias, sizeof(float));
}

std::shared_ptr<const ExpertParameters> DenseWeights::expert(int expert_index) const {
  const int local = expert_index - first_expert_;
  const auto element = static_cast<std::int64_t>(dtype_bytes(problem_.dtype));
  const std::int64_t up_columns = problem_.up_columns();
  const std::int64_t hidden = problem_.hidden;
  return std::make_shared<const ExpertParameters>(ExpertParameters{
      .up = slice(static_cast<const char*>(weights_.up), local, up_columns * hidden * element),
      .down = slice(static_cast<const char*>(weights_.down), local, hidden * problem_.intermediate * element),
      .up_bias = slice(weights_.up_bias, local, up_columns),
      .down_bias = slice(weights_.down_bias, local, hidden)});
}

}  // namespace flashmoe
