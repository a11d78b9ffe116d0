#include "io/convert_elements.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "core/numeric.hpp"
#include "support/dense_experts.hpp"

namespace flashmoe {
namespace {

constexpr DType kTypes[] = {DType::bf16, DType::fp16, DType::tf32, DType::fp32, DType::fp64};

/// The element as the engine's type holds it.
double converted(DType from, const void* data, std::int64_t index, DType to) {
  double value = load_element(from, data, index);
  if (from != to) value = static_cast<float>(value);
  alignas(8) std::byte stored[8] = {};
  store_element(to, stored, 0, value);
  return load_element(to, stored, 0);
}

TEST(ConvertElements, every_pair_of_types_at_any_address) {
  constexpr std::int64_t kCount = 2500;  // more than two blocks
  for (const DType from : kTypes) {
    const std::vector<char> in = test::random_elements(from, kCount, 3, 1, test::Values::real, 100.0);
    std::vector<std::byte> shifted(in.size() + 1);
    std::memcpy(shifted.data() + 1, in.data(), in.size());
    for (const DType to : kTypes) {
      std::vector<double> out(kCount);
      convert_elements(from, shifted.data() + 1, kCount, to, out.data());
      for (std::int64_t i = 0; i < kCount; ++i) {
        ASSERT_EQ(load_element(to, out.data(), i), converted(from, in.data(), i, to))
            << to_string(from) << to_string(to) << i;
      }
    }
  }
}

TEST(ConvertElements, infinities_and_nans_survive) {
  const std::uint16_t in[] = {0x7f80, 0xff80, 0x7fc1, 0x8000};
  float out[4];
  convert_elements(DType::bf16, reinterpret_cast<const std::byte*>(in), 4, DType::fp32, out);
  EXPECT_EQ(out[0], INFINITY);
  EXPECT_EQ(out[1], -INFINITY);
  EXPECT_TRUE(std::isnan(out[2]));
  EXPECT_TRUE(std::signbit(out[3]));
}

TEST(ConvertElements, transposes_of_strided_matrices) {
  for (const auto& [rows, columns] :
       {std::pair<std::int64_t, std::int64_t>{1, 1}, {3, 5}, {64, 64}, {65, 130}, {200, 7}}) {
    for (const DType from : kTypes) {
      for (const std::int64_t step : {1, 2}) {
        const std::int64_t width = columns * step + 3;
        const std::vector<char> in = test::random_elements(from, rows * width, 5, 2, test::Values::real, 3.0);
        for (const DType to : kTypes) {
          std::vector<double> out(static_cast<std::size_t>(rows * columns));
          convert_transposed(from, reinterpret_cast<const std::byte*>(in.data()), rows, columns, width, step, to,
                             out.data());
          for (std::int64_t r = 0; r < rows; ++r) {
            for (std::int64_t c = 0; c < columns; ++c) {
              ASSERT_EQ(load_element(to, out.data(), c * rows + r),
                        converted(from, in.data(), r * width + c * step, to));
            }
          }
        }
      }
    }
  }
}

TEST(ConvertElements, no_elements_are_no_work) {
  convert_elements(DType::fp32, nullptr, 0, DType::fp32, nullptr);
  convert_elements(DType::bf16, nullptr, 0, DType::fp64, nullptr);
  convert_transposed(DType::fp32, nullptr, 0, 0, 1, 1, DType::fp32, nullptr);
}

}  // namespace
}  // namespace flashmoe
