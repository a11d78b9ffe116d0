// Reported failures (see cases.hpp) on the CPU backend, and those of its memory and life cycle, which are its own.
#include <malloc.h>

#include <fstream>

#include "conformance/cpu_backend.hpp"
#include "conformance/precision_cases.hpp"
#include "conformance/rank_cases.hpp"
#include "conformance/repeat_cases.hpp"
#include "conformance/shape_cases.hpp"

namespace flashmoe::test {

INSTANTIATE_TYPED_TEST_SUITE_P(Cpu, RankCases, CpuBackend);
INSTANTIATE_TYPED_TEST_SUITE_P(Cpu, ShapeCases, CpuBackend);
INSTANTIATE_TYPED_TEST_SUITE_P(Cpu, RepeatCases, CpuBackend);
INSTANTIATE_TYPED_TEST_SUITE_P(Cpu, PrecisionCases, CpuBackend);

namespace {

/// Number of memory mappings of this process.
std::size_t num_mappings() {
  std::ifstream maps("/proc/self/maps");
  std::size_t lines = 0;
  for (std::string line; std::getline(maps, line);) ++lines;
  return lines;
}

TEST(CpuCases, EXIT3_creating_and_destroying_leaves_nothing_behind) {
  const Problem problem = problem_of(2, 8, 2, 2000);
  const auto experts = std::make_shared<DenseExperts>(problem, 1);
  const auto cycle = [&] {
    CpuWorld world(problem, experts);
    Batch batch = make_batch(problem, 3, 1);
    Batch none = make_batch(problem, 0, 1);
    world.call({&batch, &none}, 2000);
    EXPECT_EQ(world.message(0), "");
  };
  for (int i = 0; i < 5; ++i) cycle();
  const std::size_t before = num_mappings();
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 20; ++i) cycle();
  EXPECT_LE(num_mappings(), before + 10);  // thread stacks come and go
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

TEST(CpuCases, MEM1_layouts_say_what_is_mapped) {
  const Problem problem = problem_of(2, 8, 2, 2000);
  const Geometry geometry = plan_geometry(problem, cpu::engine_traits());
  CpuWorld world(problem, std::make_shared<DenseExperts>(problem, 1));
  EXPECT_EQ(world.heap().layout().total_bytes, make_heap_layout(geometry).total_bytes);
  EXPECT_EQ(world.context(0).local_bytes(), make_local_layout(geometry, Roster{}).total_bytes);
  // The last byte of a heap is there.
  const std::size_t last = world.heap().layout().total_bytes - 1;
  for (int rank = 0; rank < 2; ++rank) {
    world.heap().bases()[rank][last] = 1;
    EXPECT_EQ(world.heap().bases()[rank][last], 1);
  }
}

TEST(CpuCases, MEM3_a_thousand_calls_leave_the_heap_of_the_process_as_it_was) {
  if (kSanitized) GTEST_SKIP() << "sanitizers replace the allocator whose state this reads";
  const Problem problem = problem_of(2, 4, 2, 16);
  CpuWorld world(problem, std::make_shared<DenseExperts>(problem, 1));
  std::vector<Batch> batches = make_batches(problem, {16, 5}, 26);
  const auto run = [&](int calls) {
    world.each_rank([&](std::size_t rank) {
      for (int call = 0; call < calls; ++call) world.forward(rank, batches[rank], 16);
    });
  };
  run(100);
  const auto before = mallinfo2().uordblks;
  run(1000);
  EXPECT_NEAR(static_cast<double>(mallinfo2().uordblks), static_cast<double>(before), 16384.0);
}

}  // namespace
}  // namespace flashmoe::test
