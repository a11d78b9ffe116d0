// Activations against formulas written another way, known values and their limits.
#include "core/activation.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>


namespace flashmoe {
namespace {

const double kPi = std::acos(-1.0);

double gelu_by_erf(double x) { return 0.5 * x * (1.0 + std::erf(x / std::sqrt(2.0))); }
double gelu_by_tanh(double x) { return 0.5 * x * (1.0 + std::tanh(std::sqrt(2.0 / kPi) * (x + 0.044715 * std::pow(x, 3)))); }
double silu_by_tanh(double x) { return 0.5 * x * (1.0 + std::tanh(0.5 * x)); }

struct Formula {
  Activation activation;
  std::function<double(double)> value;
};

class ActivationFormula : public testing::TestWithParam<Formula> {};

TEST_P(ActivationFormula, MatchesTheTextbook) {
  for (double x = -12.0; x <= 12.0; x += 1.0 / 64) {
    const double expected = GetParam().value(x);
    EXPECT_NEAR(activate<double>(GetParam().activation, x), expected, 1e-14 * (1.0 + std::abs(expected))) << x;
    EXPECT_NEAR(activate<float>(GetParam().activation, static_cast<float>(x)), expected, 4e-6 * (1.0 + std::abs(expected)))
        << x;
  }
}

TEST_P(ActivationFormula, GateMultipliesUp) {
  for (const double gate : {-3.0, -0.5, 0.0, 0.25, 4.0}) {
    for (const double up : {-2.0, 0.0, 1.5}) {
      EXPECT_NEAR(gate_up<double>(GetParam().activation, gate, up, 1.702, 7.0), GetParam().value(gate) * up, 1e-14 * 20);
    }
  }
}

TEST_P(ActivationFormula, LargeArgumentsOverflowNowhereInBetween) {
  for (const float x : {100.0f, 1e4f, 1e12f}) {
    EXPECT_TRUE(std::isfinite(activate<float>(GetParam().activation, x))) << x;
    EXPECT_TRUE(std::isfinite(activate<float>(GetParam().activation, -x))) << -x;
  }
  EXPECT_TRUE(std::isnan(activate<float>(GetParam().activation, std::nanf("")))) << "NaN must not be clamped away";
}

INSTANTIATE_TEST_SUITE_P(
    , ActivationFormula,
    testing::Values(Formula{Activation::silu, silu_by_tanh}, Formula{Activation::gelu_erf, gelu_by_erf},
                    Formula{Activation::gelu_tanh, gelu_by_tanh},
                    Formula{Activation::relu, [](double x) { return std::max(x, 0.0); }},
                    Formula{Activation::relu_squared, [](double x) { return x > 0 ? std::pow(x, 2) : 0.0; }},
                    Formula{Activation::identity, [](double x) { return x; }}),
    [](const auto& test) { return std::string(to_string(test.param.activation)); });

TEST(Activation, ValuesAtOneAreThePublishedOnes) {
  EXPECT_NEAR(activate<double>(Activation::silu, 1.0), 0.7310585786300049, 1e-15);
  EXPECT_NEAR(activate<double>(Activation::gelu_erf, 1.0), 0.8413447460685429, 1e-15);
  EXPECT_NEAR(activate<double>(Activation::gelu_tanh, 1.0), 0.8411919906082768, 1e-15);
}

TEST(Activation, GeluKeepsItsDigitsFarBelowZero) {
  // x * Phi(x) at -10: Phi(-10) = 7.619853024160527e-24
  EXPECT_NEAR(activate<double>(Activation::gelu_erf, -10.0) / -7.619853024160527e-23, 1.0, 1e-12);
}

TEST(Activation, ClampedSwigluFollowsGptOss) {
  const double alpha = 1.702, limit = 7.0;
  const auto sigmoid_of = [](double x) { return 1.0 / (1.0 + std::exp(-x)); };
  const auto clamped = [&](double gate, double up) {
    return gate_up<double>(Activation::swiglu_clamped, gate, up, alpha, limit);
  };
  EXPECT_NEAR(clamped(2.0, 3.0), 2.0 * sigmoid_of(3.404) * 4.0, 1e-14);
  EXPECT_DOUBLE_EQ(clamped(9.0, 3.0), clamped(7.0, 3.0)) << "the gate is clamped above";
  EXPECT_NEAR(clamped(-9.0, 3.0), -9.0 * sigmoid_of(-9.0 * alpha) * 4.0, 1e-14) << "but not below";
  EXPECT_DOUBLE_EQ(clamped(2.0, 50.0), clamped(2.0, 7.0));
  EXPECT_DOUBLE_EQ(clamped(2.0, -50.0), 2.0 * sigmoid_of(3.404) * -6.0);
  EXPECT_DOUBLE_EQ(clamped(2.0, -1.0), 0.0);
}

TEST(Activation, ClampedSwigluKeepsNaN) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(std::isnan(gate_up<double>(Activation::swiglu_clamped, nan, 1.0, 1.702, 7.0)));
  EXPECT_TRUE(std::isnan(gate_up<double>(Activation::swiglu_clamped, 1.0, nan, 1.702, 7.0)));
}

TEST(Activation, ClampedSwigluWithoutAGateIsNoNumber) {
  EXPECT_TRUE(std::isnan(activate<double>(Activation::swiglu_clamped, 1.0)));
}

}  // namespace
}  // namespace flashmoe
