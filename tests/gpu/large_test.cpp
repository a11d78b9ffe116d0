// Batches beyond 32-bit offsets: rows, bytes and elements above 2^31, of which the last must be as right as the first.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "device.hpp"
#include "support/cuda_world.hpp"

namespace flashmoe::test {
namespace {

/// A batch of many tokens that repeats a few: as many bits are random as the comparison looks at.
Batch repeat(const Problem& problem, const Batch& few, std::int64_t num_tokens) {
  const auto row = static_cast<std::size_t>(problem.hidden) * dtype_bytes(problem.dtype);
  const auto k = static_cast<std::size_t>(problem.top_k);
  Batch many;
  many.num_tokens = num_tokens;
  many.x.resize(static_cast<std::size_t>(num_tokens) * row);
  many.y.resize(many.x.size());
  many.poison();
  for (std::int64_t begin = 0; begin < num_tokens; begin += few.num_tokens) {
    const auto count = static_cast<std::size_t>(std::min(few.num_tokens, num_tokens - begin));
    std::copy_n(few.x.begin(), count * row, many.x.begin() + begin * static_cast<std::int64_t>(row));
    const auto routes = static_cast<std::ptrdiff_t>(count * k);
    many.topk_ids.insert(many.topk_ids.end(), few.topk_ids.begin(), few.topk_ids.begin() + routes);
    many.topk_weights.insert(many.topk_weights.end(), few.topk_weights.begin(), few.topk_weights.begin() + routes);
  }
  return many;
}

/// Runs `num_tokens` tokens on one rank; the first and the last hundred must agree with the reference, and every
/// repetition must have the bits of the first.
void check(const Problem& problem, std::int64_t num_tokens) {
  validate(problem);
  constexpr std::int64_t kPeriod = 512;
  const auto experts = std::make_shared<DenseExperts>(problem, 1);
  Batch batch = repeat(problem, make_batch(problem, kPeriod, 2), num_tokens);
  CudaWorld world(problem, experts, {.deadline_seconds = 30.0}, 1);
  world.poison();
  world.forward(0, batch, problem.max_tokens);
  for (const std::int64_t begin : {std::int64_t{0}, num_tokens - 100}) {
    const Batch part = slice(problem, batch, begin, begin + 100);
    const auto wanted = reference::layer(problem, *experts, part.x_view(), part.routing());
    EXPECT_LE(error_in_bars(problem, part, wanted), 1.0) << "tokens from " << begin;
  }
  const std::size_t period_bytes = static_cast<std::size_t>(kPeriod * problem.hidden) * dtype_bytes(problem.dtype);
  for (std::size_t at = period_bytes; at < batch.y.size(); at += period_bytes) {
    const std::size_t bytes = std::min(period_bytes, batch.y.size() - at);
    ASSERT_TRUE(std::equal(batch.y.begin() + static_cast<std::ptrdiff_t>(at),
                           batch.y.begin() + static_cast<std::ptrdiff_t>(at + bytes), batch.y.begin()))
        << "tokens from " << at / period_bytes * kPeriod;
  }
}

TEST(Large, I321_I325_more_elements_of_all_routes_than_31_bits_count) {
  FLASHMOE_REQUIRE_GPUS(1);
  check({.hidden = 7168, .intermediate = 64, .num_experts = 8, .top_k = 8, .max_tokens = 38'000,
         .result_form = ResultForm::per_route},
        38'000);
}

TEST(Large, I321_more_bytes_of_tokens_than_32_bits_count) {
  FLASHMOE_REQUIRE_GPUS(1);
  check({.hidden = 7168, .intermediate = 64, .num_experts = 8, .top_k = 1, .max_tokens = 300'000}, 300'000);
}

TEST(Large, I324_I326_more_elements_of_the_intermediate_than_31_bits_count) {
  FLASHMOE_REQUIRE_GPUS(1);
  check({.hidden = 64, .intermediate = 17'408, .num_experts = 8, .top_k = 1, .max_tokens = 61'682}, 61'682);
  check({.hidden = 64, .intermediate = 1024, .num_experts = 8, .top_k = 8, .max_tokens = 135'000}, 135'000);
}

}  // namespace
}  // namespace flashmoe::test
