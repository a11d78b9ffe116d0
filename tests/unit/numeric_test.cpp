// Conversions against the compiler's own half type, brute force over neighbours, and frexp arithmetic.
#include "core/numeric.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "core/counter_rng.hpp"

namespace flashmoe {
namespace {

using Half = _Float16;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

float half_by_compiler(std::uint16_t bits) { return static_cast<float>(std::bit_cast<Half>(bits)); }

// Finite float bit patterns of every exponent, with the edges of each.
std::vector<float> sample_floats() {
  std::vector<float> samples = {0.0f, -0.0f, kInfinity, -kInfinity, 65504.0f, 65519.99f, 65520.0f, 65536.0f, -65520.0f};
  const CounterRng rng(7, 0);
  for (std::uint32_t exponent = 0; exponent < 255; ++exponent) {
    for (const std::uint32_t mantissa : {0u, 1u, 0x7fffffu, 0x400000u, 0x1000u, 0x1001u, 0x0fffu, 0x8000u, 0x7fffu}) {
      samples.push_back(std::bit_cast<float>(exponent << 23 | mantissa));
    }
    for (std::uint64_t i = 0; i < 2000; ++i) {
      const auto bits = static_cast<std::uint32_t>(rng.bits(exponent * 2000 + i));
      samples.push_back(std::bit_cast<float>((bits & 0x807fffffu) | exponent << 23));
    }
  }
  return samples;
}

TEST(Numeric, EveryHalfWidensAsTheCompilerDoes) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const float expected = half_by_compiler(half);
    const float got = fp16_to_float(half);
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(got)) << bits;
    } else {
      EXPECT_EQ(std::bit_cast<std::uint32_t>(got), std::bit_cast<std::uint32_t>(expected)) << bits;
    }
  }
}

TEST(Numeric, FloatsNarrowToHalfAsTheCompilerDoes) {
  for (const float value : sample_floats()) {
    ASSERT_EQ(float_to_fp16(value), std::bit_cast<std::uint16_t>(static_cast<Half>(value))) << std::hexfloat << value;
  }
}

TEST(Numeric, EveryMidpointBetweenHalvesGoesToTheEvenOne) {
  for (std::uint16_t bits = 0; bits < 0x7bff; ++bits) {
    const auto above = static_cast<std::uint16_t>(bits + 1);
    const float middle = (fp16_to_float(bits) + fp16_to_float(above)) / 2;  // exact: one bit more than a half has
    ASSERT_EQ(float_to_fp16(middle), bits % 2 == 0 ? bits : above) << bits;
    ASSERT_EQ(float_to_fp16(std::nextafter(middle, 0.0f)), bits) << bits;
    ASSERT_EQ(float_to_fp16(std::nextafter(middle, kInfinity)), above) << bits;
    ASSERT_EQ(float_to_fp16(-middle), float_to_fp16(middle) | 0x8000) << bits;
  }
}

TEST(Numeric, EveryMidpointBetweenBf16ValuesGoesToTheEvenOne) {
  for (std::uint16_t bits = 0; bits < 0x7f7f; ++bits) {
    const auto above = static_cast<std::uint16_t>(bits + 1);
    const auto middle = static_cast<float>((double{bf16_to_float(bits)} + double{bf16_to_float(above)}) / 2);
    ASSERT_EQ(float_to_bf16(middle), bits % 2 == 0 ? bits : above) << bits;
    ASSERT_EQ(float_to_bf16(std::nextafter(middle, 0.0f)), bits) << bits;
    ASSERT_EQ(float_to_bf16(std::nextafter(middle, kInfinity)), above) << bits;
    ASSERT_EQ(float_to_bf16(-middle), float_to_bf16(middle) | 0x8000) << bits;
  }
}

TEST(Numeric, SixteenBitTypesRoundTripEveryBitPatternButNaNs) {
  for (std::uint32_t pattern = 0; pattern < 65536; ++pattern) {
    const auto bits = static_cast<std::uint16_t>(pattern);
    ASSERT_TRUE(std::isnan(bf16_to_float(bits)) || float_to_bf16(bf16_to_float(bits)) == bits) << bits;
    ASSERT_TRUE(std::isnan(fp16_to_float(bits)) || float_to_fp16(fp16_to_float(bits)) == bits) << bits;
  }
}

TEST(Numeric, EveryKindOfNaNStaysNaN) {
  for (const std::uint32_t bits : {0x7f800001u, 0x7fffffffu, 0xff800001u, 0xffffffffu, 0x7fc00000u, 0x7f80ffffu}) {
    const auto value = std::bit_cast<float>(bits);
    EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(value)))) << std::hex << bits;
    EXPECT_TRUE(std::isnan(fp16_to_float(float_to_fp16(value)))) << std::hex << bits;
    EXPECT_TRUE(std::isnan(round_to_tf32(value))) << std::hex << bits;
  }
}

TEST(Numeric, TooLargeBecomesInfinite) {
  EXPECT_EQ(bf16_to_float(float_to_bf16(std::numeric_limits<float>::max())), kInfinity);
  EXPECT_EQ(bf16_to_float(float_to_bf16(-kInfinity)), -kInfinity);
  EXPECT_EQ(fp16_to_float(float_to_fp16(65519.0f)), 65504.0f);
  EXPECT_EQ(fp16_to_float(float_to_fp16(65520.0f)), kInfinity);
}

TEST(Numeric, Tf32KeepsElevenDigitsAndRoundsTiesAway) {
  for (const float value : sample_floats()) {
    if (!std::isfinite(value) || std::fpclassify(value) == FP_SUBNORMAL) continue;
    int exponent = 0;
    const double fraction = std::frexp(static_cast<double>(value), &exponent);
    const double expected = std::ldexp(std::round(fraction * 2048.0) / 2048.0, exponent);  // std::round: ties away
    ASSERT_EQ(round_to_tf32(value), static_cast<float>(expected)) << std::hexfloat << value;
  }
  EXPECT_EQ(round_to_tf32(kInfinity), kInfinity);
}

class StoredType : public testing::TestWithParam<DType> {};

TEST_P(StoredType, ArraysConvertLikeSingleElements) {
  const DType dtype = GetParam();
  const std::vector<float> values = {0.0f, 1.0f, -2.7182817f, 1e-7f, 65519.0f, 1e30f, -0.33333334f, kInfinity, kNaN};
  const auto count = static_cast<std::int64_t>(values.size());
  std::vector<char> array(values.size() * dtype_bytes(dtype));
  std::vector<char> single(array.size());
  store_floats(dtype, values.data(), count, array.data());
  for (std::int64_t i = 0; i < count; ++i) store_element(dtype, single.data(), i, double{values[i]});
  EXPECT_EQ(array, single);

  std::vector<float> floats(values.size());
  std::vector<double> doubles(values.size());
  load_floats(dtype, array.data(), count, floats.data());
  load_doubles(dtype, array.data(), count, doubles.data());
  for (std::int64_t i = 0; i + 1 < count; ++i) {
    EXPECT_EQ(doubles[i], load_element(dtype, array.data(), i)) << i;
    EXPECT_EQ(floats[i], static_cast<float>(doubles[i])) << i;
  }
  EXPECT_TRUE(std::isnan(floats.back()) && std::isnan(doubles.back()));
}

TEST_P(StoredType, KeepsTheDigitsItPromises) {
  const DType dtype = GetParam();
  const int digits = dtype == DType::bf16 ? 8 : dtype == DType::fp16 ? 11 : dtype == DType::fp64 ? 53 : 24;
  double stored = 0.0;
  const double wanted = 1.0 + std::ldexp(1.0, 1 - digits);
  store_element(dtype, &stored, 0, wanted);
  EXPECT_EQ(load_element(dtype, &stored, 0), wanted);
  store_element(dtype, &stored, 0, 1.0 + std::ldexp(1.0, -digits));  // a tie: to the even 1
  EXPECT_EQ(load_element(dtype, &stored, 0), 1.0);
}

TEST_P(StoredType, EmptyArraysNeedNoMemory) {
  load_floats(GetParam(), nullptr, 0, nullptr);
  load_doubles(GetParam(), nullptr, 0, nullptr);
  store_floats(GetParam(), nullptr, 0, nullptr);
}

INSTANTIATE_TEST_SUITE_P(, StoredType, testing::Values(DType::bf16, DType::fp16, DType::tf32, DType::fp32, DType::fp64),
                         [](const auto& test) { return std::string(to_string(test.param)); });

}  // namespace
}  // namespace flashmoe
