// main() of every gtest executable: gtest's own, except that a run in which every test was skipped exits with 77,
// which ctest shows as skipped instead of passed.
#include <gtest/gtest.h>

int main(int argc, char** argv) {
  constexpr int kSkipped = 77;
  testing::InitGoogleTest(&argc, argv);
  const int result = RUN_ALL_TESTS();
  const auto& run = *testing::UnitTest::GetInstance();
  const bool all_skipped = run.skipped_test_count() > 0 && run.successful_test_count() == 0;
  return result == 0 && all_skipped ? kSkipped : result;
}
