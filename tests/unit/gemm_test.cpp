// The CPU's matrix product: right, the same for a row wherever it lies, and safe from many threads.
#include "cpu/gemm.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <thread>
#include <vector>

#include "core/counter_rng.hpp"

namespace flashmoe::cpu {
namespace {

template <class T>
std::vector<T> random_matrix(int rows, int columns, std::uint64_t seed) {
  const CounterRng rng(seed, 3);
  std::vector<T> values(static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<T>(2.0 * rng.uniform(i) - 1.0);
  return values;
}

struct Shape {
  int m, n, k;
};
constexpr Shape kShapes[] = {{1, 1, 1}, {4, 8, 8}, {16, 64, 8}, {17, 5, 3}, {32, 128, 72}, {32, 128, 257}, {48, 24, 40},
                             {64, 256, 1024}};

template <class T>
class Gemm : public testing::Test {
 protected:
  static void SetUpTestSuite() { check_blas(); }  // as the library: one thread a call
  static constexpr double kTolerance = sizeof(T) == 4 ? 2e-6 : 4e-15;  ///< per sqrt(k)
};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(Gemm, Types);

TYPED_TEST(Gemm, agrees_with_the_plain_sum) {
  for (const Shape s : kShapes) {
    const auto a = random_matrix<TypeParam>(s.m, s.k, 1);
    const auto b = random_matrix<TypeParam>(s.n, s.k, 2);
    std::vector<TypeParam> c(static_cast<std::size_t>(s.m * s.n), static_cast<TypeParam>(NAN));
    std::vector<TypeParam> by_row = c;
    multiply(s.m, s.n, s.k, a.data(), b.data(), c.data());
    multiply_row_by_row(s.m, s.n, s.k, a.data(), b.data(), by_row.data());
    for (int row = 0; row < s.m; ++row) {
      for (int column = 0; column < s.n; ++column) {
        double sum = 0.0;
        for (int i = 0; i < s.k; ++i) {
          sum += static_cast<double>(a[static_cast<std::size_t>(row * s.k + i)]) *
                 static_cast<double>(b[static_cast<std::size_t>(column * s.k + i)]);
        }
        const auto index = static_cast<std::size_t>(row * s.n + column);
        const double bar = this->kTolerance * std::sqrt(s.k);
        ASSERT_NEAR(c[index], sum, bar) << s.m << "x" << s.n << "x" << s.k;
        ASSERT_NEAR(by_row[index], sum, bar) << s.m << "x" << s.n << "x" << s.k;
      }
    }
  }
}

/// Rows of tiles: the same row at every place, among random neighbours, in tiles of every height of whole groups.
TYPED_TEST(Gemm, a_row_gives_the_same_bits_at_every_place_and_height_and_beside_any_neighbours) {
  for (const int n : {16, 64, 128, 256}) {
    for (const int k : {8, 40, 72, 200, 768}) {
      const auto b = random_matrix<TypeParam>(n, k, 2);
      const auto row = random_matrix<TypeParam>(1, k, 4);
      std::vector<TypeParam> wanted;
      for (const int m : {kRowGroup, 2 * kRowGroup, 4 * kRowGroup}) {
        std::vector<TypeParam> c(static_cast<std::size_t>(m * n));
        for (int place = 0; place < m; ++place) {
          auto a = random_matrix<TypeParam>(m, k, static_cast<std::uint64_t>(100 + place));
          std::copy(row.begin(), row.end(), a.begin() + place * k);
          multiply(m, n, k, a.data(), b.data(), c.data());
          const std::vector<TypeParam> got(c.begin() + place * n, c.begin() + (place + 1) * n);
          if (wanted.empty()) wanted = got;
          ASSERT_EQ(got, wanted) << "place " << place << " of " << m << ", n " << n << ", k " << k;
        }
      }
    }
  }
}

TYPED_TEST(Gemm, rows_one_by_one_are_alike_too) {
  constexpr int m = 32, n = 128, k = 200;
  const auto row = random_matrix<TypeParam>(1, k, 4);
  const auto b = random_matrix<TypeParam>(n, k, 2);
  std::vector<TypeParam> a, c(m * n);
  for (int i = 0; i < m; ++i) a.insert(a.end(), row.begin(), row.end());
  multiply_row_by_row(m, n, k, a.data(), b.data(), c.data());
  for (std::size_t i = n; i < c.size(); ++i) ASSERT_EQ(c[i], c[i % n]);
}

TYPED_TEST(Gemm, nan_in_a_row_stays_in_it) {
  constexpr int m = 32, n = 24, k = 16;
  auto a = random_matrix<TypeParam>(m, k, 1);
  const auto b = random_matrix<TypeParam>(n, k, 2);
  a[7 * k + 3] = static_cast<TypeParam>(NAN);
  std::vector<TypeParam> c(m * n);
  multiply(m, n, k, a.data(), b.data(), c.data());
  for (int row = 0; row < m; ++row) {
    for (int column = 0; column < n; ++column) {
      ASSERT_EQ(std::isnan(c[static_cast<std::size_t>(row * n + column)]), row == 7);
    }
  }
}

TYPED_TEST(Gemm, threads_do_not_disturb_each_other) {
  constexpr int m = 32, n = 128, k = 300;
  const auto a = random_matrix<TypeParam>(m, k, 1);
  const auto b = random_matrix<TypeParam>(n, k, 2);
  std::vector<TypeParam> wanted(m * n);
  multiply(m, n, k, a.data(), b.data(), wanted.data());
  std::atomic<int> wrong{0};
  {
    std::vector<std::jthread> threads;
    for (int thread = 0; thread < 4; ++thread) {
      threads.emplace_back([&] {
        std::vector<TypeParam> c(m * n);
        for (int run = 0; run < 50; ++run) {
          multiply(m, n, k, a.data(), b.data(), c.data());
          if (c != wanted) ++wrong;
        }
      });
    }
  }
  EXPECT_EQ(wrong, 0);
}

TEST(Blas, passes_its_check) { EXPECT_NO_THROW(check_blas()); }

}  // namespace
}  // namespace flashmoe::cpu
