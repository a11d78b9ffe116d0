// Memory of the CUDA backend: what a layer takes, that it comes back, and layers that do not fit.
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "device.hpp"
#include "flashmoe/error.hpp"
#include "support/cuda_world.hpp"

namespace flashmoe::test {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

Problem problem_of(int num_ranks, std::int64_t max_tokens) {
  return {.num_ranks = num_ranks, .hidden = 64, .intermediate = 48, .num_experts = 9 * num_ranks, .top_k = 2,
          .max_tokens = max_tokens, .wave_tokens = 64};
}

std::int64_t free_bytes() {
  std::size_t free = 0;
  std::size_t total = 0;
  cuda_backend::check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return static_cast<std::int64_t>(free);
}

class GpuMemory : public ::testing::Test {
 protected:
  void SetUp() override { FLASHMOE_REQUIRE_GPUS(1); }
};

TEST_F(GpuMemory, EXIT3_creating_and_destroying_leaves_nothing_behind) {
  const Problem problem = problem_of(3, 200);
  const auto experts = std::make_shared<DenseExperts>(problem, 1);
  const auto cycle = [&](bool call) {
    CudaWorld world(problem, experts);
    if (!call) return;
    std::vector<Batch> batches = make_batches(problem, {5, 0, 7}, 1);
    world.call({&batches[0], &batches[1], &batches[2]}, 200);
    ASSERT_EQ(world.message(0), "");
  };
  cycle(true);
  const std::int64_t before = free_bytes();
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 200; ++i) cycle(i % 10 == 0);
  EXPECT_NEAR(static_cast<double>(free_bytes()), static_cast<double>(before), 10e6);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(60));
}

TEST_F(GpuMemory, MEM1_layouts_say_what_is_taken) {
  Problem problem = problem_of(1, 1 << 16);
  problem.hidden = 1024;
  problem.wave_tokens = 1 << 13;
  const Geometry geometry = plan_geometry(problem, cuda_backend::engine_traits(problem));
  const auto heap_bytes = static_cast<std::int64_t>(make_heap_layout(geometry).total_bytes);
  ASSERT_GT(heap_bytes, 64 << 20);
  const std::int64_t before = free_bytes();
  const auto heap = std::make_shared<cuda_backend::LocalHeap>(geometry, std::vector<int>{0});
  EXPECT_NEAR(static_cast<double>(before - free_bytes()), static_cast<double>(heap_bytes), 4e6);
  const std::int64_t between = free_bytes();
  const cuda_backend::RankContext context(heap, 0, problem.dtype, {});
  EXPECT_NEAR(static_cast<double>(between - free_bytes()), static_cast<double>(context.local_bytes()), 8e6);
}

TEST_F(GpuMemory, MEM3_a_thousand_calls_take_nothing) {
  const Problem problem = problem_of(2, 200);
  CudaWorld world(problem, std::make_shared<DenseExperts>(problem, 1));
  std::vector<Batch> batches = make_batches(problem, {200, 16}, 2);
  const auto run = [&](int calls) {
    for (int call = 0; call < calls; ++call) world.call({&batches[0], &batches[1]}, 200);
  };
  run(10);
  const std::int64_t before = free_bytes();
  run(1000);
  for (std::size_t rank = 0; rank < 2; ++rank) ASSERT_EQ(world.message(rank), "");
  EXPECT_EQ(free_bytes(), before);
}

TEST_F(GpuMemory, a_layer_that_does_not_fit_is_refused_and_leaves_nothing_behind) {
  const std::int64_t before = free_bytes();
  Problem large = problem_of(2, 65535);
  large.hidden = 65536;
  large.dtype = DType::fp64;
  large.wave_tokens = 65535;
  large.wave_ring = 4;
  const Geometry geometry = plan_geometry(large, cuda_backend::engine_traits(large));
  ASSERT_GT(make_heap_layout(geometry).total_bytes, std::size_t{200} << 30);
  EXPECT_THAT([&] { cuda_backend::LocalHeap(geometry, {0, 0}); },
              ThrowsMessage<CudaError>(HasSubstr("bytes left: use fewer tokens, waves or ranks a GPU")));
  EXPECT_NEAR(static_cast<double>(free_bytes()), static_cast<double>(before), 10e6);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST_F(GpuMemory, more_blocks_than_can_be_resident_are_refused) {
  const Problem problem = problem_of(3, 200);
  const auto experts = std::make_shared<DenseExperts>(problem, 1);
  EXPECT_THAT([&] { CudaWorld(problem, experts, {.num_blocks = 100}, 1); },
              ThrowsMessage<CudaError>(HasSubstr("100 blocks of each of 3 ranks on GPU 0 cannot all be resident")));
}

TEST_F(GpuMemory, fp32_is_refused_with_the_way_out) {
  Problem problem = problem_of(3, 200);
  problem.dtype = DType::fp32;
  const auto experts = std::make_shared<DenseExperts>(problem, 1);
  EXPECT_THAT([&] { CudaWorld(problem, experts); }, ThrowsMessage<InvalidArgument>(HasSubstr("use tf32")));
}

}  // namespace
}  // namespace flashmoe::test
