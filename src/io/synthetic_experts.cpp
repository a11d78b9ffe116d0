#include "io/synthetic_experts.hpp"

#include <fmt/format.h>

#include <cmath>
#include <new>

#include "flashmoe/error.hpp"

namespace flashmoe {
namespace {

constexpr std::size_t kAlignment = 64;
constexpr double kBiasScale = 0.1;

// Parts of one expert's memory, in order.
struct ExpertLayout {
  std::size_t up = 0;
  std::size_t down = 0;
  std::size_t up_bias = 0;
  std::size_t down_bias = 0;
  std::size_t total = 0;

  explicit ExpertLayout(const Problem& problem) {
    const std::size_t element = dtype_bytes(problem.dtype);
    const auto hidden = static_cast<std::size_t>(problem.hidden);
    const auto columns = static_cast<std::size_t>(problem.up_columns());
    up = take(columns * hidden * element);
    down = take(hidden * static_cast<std::size_t>(problem.intermediate) * element);
    up_bias = take(problem.up_bias ? columns * sizeof(float) : 0);
    down_bias = take(problem.down_bias ? hidden * sizeof(float) : 0);
  }

 private:
  std::size_t take(std::size_t bytes) {
    const std::size_t offset = total;
    total += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return offset;
  }
};

struct AlignedDelete {
  void operator()(std::byte* memory) const { ::operator delete[](memory, std::align_val_t{kAlignment}); }
};

struct OwnedExpert {
  std::unique_ptr<std::byte, AlignedDelete> memory;
  ExpertParameters parameters;
};

}  // namespace

std::size_t expert_bytes(const Problem& problem) { return ExpertLayout(problem).total; }

GeneratedExperts::GeneratedExperts(const Problem& problem, std::uint64_t seed, std::size_t cache_bytes, ValueSet values)
    : problem_(problem), seed_(seed), values_(values), cache_(problem.num_experts, expert_bytes(problem), cache_bytes) {}

std::shared_ptr<const ExpertParameters> GeneratedExperts::expert(int expert_index) const {
  if (expert_index < 0 || expert_index >= problem_.num_experts) {
    throw InvalidArgument(fmt::format("expert {} must be in 0..{}", expert_index, problem_.num_experts - 1));
  }
  return cache_.get(expert_index, [&] { return make(expert_index); });
}

std::shared_ptr<const ExpertParameters> GeneratedExperts::make(int expert_index) const {
  const ExpertLayout layout(problem_);
  auto owned = std::make_shared<OwnedExpert>();
  try {
    owned->memory.reset(static_cast<std::byte*>(::operator new[](layout.total, std::align_val_t{kAlignment})));
  } catch (const std::bad_alloc&) {
    throw Error(fmt::format("expert {} needs {} bytes, but no memory is left; use fewer ranks in one process, a smaller "
                            "layer or a smaller expert cache",
                            expert_index, layout.total));
  }

  std::byte* memory = owned->memory.get();
  const auto fill = [&](Stream kind, DType dtype, double scale, int bound, std::int64_t count, std::size_t offset) {
    const CounterRng rng = stream(seed_, kind, static_cast<std::uint64_t>(expert_index));
    if (values_ == ValueSet::small_integers) {
      fill_integers(dtype, rng, bound, count, memory + offset);
    } else {
      fill_uniform(dtype, rng, scale, count, memory + offset);
    }
  };
  const std::int64_t hidden = problem_.hidden;
  const std::int64_t columns = problem_.up_columns();
  const std::int64_t intermediate = problem_.intermediate;
  const double up_scale = std::sqrt(3.0 / static_cast<double>(hidden));
  const double down_scale = std::sqrt(3.0 / static_cast<double>(intermediate));
  fill(Stream::up, problem_.dtype, up_scale, 1, columns * hidden, layout.up);
  fill(Stream::down, problem_.dtype, down_scale, 1, hidden * intermediate, layout.down);
  owned->parameters = {.up = memory + layout.up, .down = memory + layout.down};
  if (problem_.up_bias) {
    fill(Stream::up_bias, DType::fp32, kBiasScale, 2, columns, layout.up_bias);
    owned->parameters.up_bias = reinterpret_cast<const float*>(memory + layout.up_bias);
  }
  if (problem_.down_bias) {
    fill(Stream::down_bias, DType::fp32, kBiasScale, 2, hidden, layout.down_bias);
    owned->parameters.down_bias = reinterpret_cast<const float*>(memory + layout.down_bias);
  }
  return {owned, &owned->parameters};
}

}  // namespace flashmoe
