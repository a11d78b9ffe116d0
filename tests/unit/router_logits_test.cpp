// router_logits: the product of hidden states and the router's weight.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "core/numeric.hpp"
#include "cpu/router.hpp"
#include "routed.hpp"

namespace flashmoe::test {
namespace {

TEST(RouterLogits, AreTheProductInDoubleRoundedOnce) {
  constexpr int num_experts = 7, hidden = 50, num_tokens = 5;
  const std::vector<float> weight = random_logits(num_experts * hidden, 30);
  const std::vector<float> bias = random_logits(num_experts, 31);
  const std::vector<float> values = random_logits(num_tokens * hidden, 32);
  for (const DType dtype : {DType::bf16, DType::fp16, DType::fp32, DType::fp64}) {
    std::vector<char> x(values.size() * dtype_bytes(dtype));
    store_floats(dtype, values.data(), static_cast<std::int64_t>(values.size()), x.data());
    for (const bool biased : {false, true}) {
      std::vector<float> logits(num_tokens * num_experts, kNaN);
      router_logits({num_experts, hidden, weight.data(), biased ? bias.data() : nullptr}, dtype, {x.data(), num_tokens},
                    logits.data());
      for (int token = 0; token < num_tokens; ++token) {
        for (int expert = 0; expert < num_experts; ++expert) {
          long double sum = biased ? bias[expert] : 0.0f;
          for (int i = 0; i < hidden; ++i) {
            sum += load_element(dtype, x.data(), token * hidden + i) * static_cast<long double>(weight[expert * hidden + i]);
          }
          EXPECT_FLOAT_EQ(logits[token * num_experts + expert], static_cast<float>(sum));
        }
      }
    }
  }
}

TEST(RouterLogits, KeepTermsThatFp32AccumulationLoses) {
  const std::vector<float> weight = {1e8f, 1.0f, -1e8f};
  const std::vector<float> x = {1.0f, 0.5f, 1.0f};
  float logit = 0.0f;
  router_logits({1, 3, weight.data(), nullptr}, DType::fp32, {x.data(), 1}, &logit);
  EXPECT_EQ(logit, 0.5f);
}

TEST(RouterLogits, ANaNRowStaysInItsRow) {
  const std::vector<float> weight = {1.0f, 2.0f, 3.0f, 4.0f};
  const std::vector<float> x = {kNaN, 1.0f, 1.0f, 1.0f};
  std::vector<float> logits(4);
  router_logits({2, 2, weight.data(), nullptr}, DType::fp32, {x.data(), 2}, logits.data());
  EXPECT_TRUE(std::isnan(logits[0]) && std::isnan(logits[1]));
  EXPECT_EQ(logits[2], 3.0f);
  EXPECT_EQ(logits[3], 7.0f);
}

}  // namespace
}  // namespace flashmoe::test
