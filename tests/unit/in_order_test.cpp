#include "cpu/in_order.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace flashmoe {
namespace {

class InOrder : public testing::TestWithParam<int> {};

TEST_P(InOrder, CommitsEveryUnitOnceInAscendingOrder) {
  std::vector<std::int64_t> committed;
  std::vector<std::int64_t> buffers(static_cast<std::size_t>(GetParam()), -1);
  compute_in_order(
      100, GetParam(),
      [&](std::int64_t unit, int worker) {
        if (unit % 7 == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));  // stragglers
        buffers.at(static_cast<std::size_t>(worker)) = unit;
      },
      [&](std::int64_t unit, int worker) {
        EXPECT_EQ(buffers.at(static_cast<std::size_t>(worker)), unit) << "a worker's buffer is its own until its commit";
        committed.push_back(unit);
      });
  std::vector<std::int64_t> expected(100);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(committed, expected);
}

TEST_P(InOrder, NoUnitsIsNoWork) {
  compute_in_order(0, GetParam(), [](std::int64_t, int) { FAIL(); }, [](std::int64_t, int) { FAIL(); });
}

TEST_P(InOrder, RethrowsTheLowestFailureAndCommitsWhatCameBefore) {
  std::atomic<std::int64_t> last_committed = -1;
  const auto compute = [](std::int64_t unit, int) {
    if (unit >= 20) throw std::runtime_error("unit " + std::to_string(unit));
  };
  try {
    compute_in_order(100, GetParam(), compute, [&](std::int64_t unit, int) { last_committed = unit; });
    FAIL() << "no exception";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "unit 20");
  }
  EXPECT_EQ(last_committed, 19);
}

TEST_P(InOrder, AFailingCommitStopsTheRest) {
  std::vector<std::int64_t> committed;
  const auto commit = [&](std::int64_t unit, int) {
    if (unit == 5) throw std::runtime_error("commit");
    committed.push_back(unit);
  };
  EXPECT_THROW(compute_in_order(50, GetParam(), [](std::int64_t, int) {}, commit), std::runtime_error);
  EXPECT_EQ(committed, (std::vector<std::int64_t>{0, 1, 2, 3, 4}));
}

INSTANTIATE_TEST_SUITE_P(Threads, InOrder, testing::Values(1, 2, 3, 8));

}  // namespace
}  // namespace flashmoe
