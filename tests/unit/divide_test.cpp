// The host's side; what a GPU makes of it: tests/gpu/divide_test.cu.
#include "core/divide.hpp"

#include <gtest/gtest.h>

namespace flashmoe {
namespace {

TEST(Divide, rounds_down_or_up) {
  static_assert(divide_small(11, 4) == 2);
  EXPECT_EQ(divide_small(0, 3), 0);
  EXPECT_EQ(divide_small((1 << 21) - 1, 1), (1 << 21) - 1);
  EXPECT_EQ(ceil_divide_small(0, 3), 0);
  EXPECT_EQ(ceil_divide_small(12, 4), 3);
  EXPECT_EQ(ceil_divide_small(13, 4), 4);
}

}  // namespace
}  // namespace flashmoe
