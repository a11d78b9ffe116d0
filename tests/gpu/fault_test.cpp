// Late, absent and wrong ranks: an error that names who and why, within the deadline, and a GPU that goes on working.
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "device.hpp"
#include "support/cuda_world.hpp"

namespace flashmoe::test {
namespace {

using ::testing::HasSubstr;

Problem problem_of(WireForm form) {
  return {.num_ranks = 3, .hidden = 64, .intermediate = 48, .num_experts = 9, .top_k = 2, .max_tokens = 200,
          .wire_form = form, .wave_tokens = 64};
}

class Faults : public ::testing::TestWithParam<WireForm> {
 protected:
  void SetUp() override { FLASHMOE_REQUIRE_GPUS(1); }

  /// A fresh layer on the same GPU still computes.
  void expect_gpu_works() {
    CudaWorld world(problem_, experts_);
    std::vector<Batch> batches = batches_of(100);
    world.call({&batches[0], &batches[1], &batches[2]}, 200);
    for (std::size_t rank = 0; rank < 3; ++rank) {
      ASSERT_EQ(world.message(rank), "");
      const auto wanted = reference::layer(problem_, *experts_, batches[rank].x_view(), batches[rank].routing());
      EXPECT_LE(reference::relative_l2(batches[rank].output(problem_), wanted), 1.3 * tolerance(problem_.dtype));
    }
  }
  std::vector<Batch> batches_of(std::int64_t tokens) {
    std::vector<Batch> batches;
    for (std::uint64_t rank = 0; rank < 3; ++rank) batches.push_back(make_batch(problem_, tokens, 50 + rank));
    return batches;
  }

  Problem problem_ = problem_of(GetParam());
  std::shared_ptr<DenseExperts> experts_ = std::make_shared<DenseExperts>(problem_, 1);
};

TEST_P(Faults, a_rank_that_never_launches_is_named_by_all_others) {
  CudaWorld world(problem_, experts_, {.deadline_seconds = 0.5});
  std::vector<Batch> batches = batches_of(100);
  const auto begin = std::chrono::steady_clock::now();
  world.call({&batches[0], nullptr, &batches[2]}, 200);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(4));
  for (const std::size_t rank : {0u, 2u}) EXPECT_THAT(world.message(rank), HasSubstr("for rank 1 to enter call 0"));
  EXPECT_THROW(world.layer(0).status(), Timeout);
  expect_gpu_works();
}

TEST_P(Faults, a_straggler_of_one_second_only_delays) {
  CudaWorld world(problem_, experts_, {.deadline_seconds = 10.0});
  std::vector<Batch> batches = batches_of(100);
  std::vector<CudaWorld::Uploaded> uploaded;
  for (std::size_t rank = 0; rank < 3; ++rank) uploaded.push_back(world.upload(rank, batches[rank]));
  world.synchronize_all();
  for (const std::size_t rank : {0u, 2u, 1u}) {
    if (rank == 1) std::this_thread::sleep_for(std::chrono::seconds(1));
    world.layer(rank).forward({.x = {uploaded[rank].x.as(), 100},
                               .routing = {uploaded[rank].ids.as<std::int32_t>(), uploaded[rank].weights.as<float>()},
                               .y = {uploaded[rank].y.as(), 100},
                               .max_tokens = 200},
                              world.stream(rank));
  }
  world.synchronize_all();
  for (std::size_t rank = 0; rank < 3; ++rank) {
    ASSERT_NO_THROW(world.layer(rank).status());
    cuda_backend::check(cudaMemcpy(batches[rank].y.data(), uploaded[rank].y.as(), batches[rank].y.size(),
                                   cudaMemcpyDeviceToHost), "cudaMemcpy");
    const auto wanted = reference::layer(problem_, *experts_, batches[rank].x_view(), batches[rank].routing());
    EXPECT_LE(reference::relative_l2(batches[rank].output(problem_), wanted), 1.3 * tolerance(problem_.dtype));
  }
}

TEST_P(Faults, a_wrong_id_is_reported_by_its_rank_and_ends_the_others) {
  CudaWorld world(problem_, experts_, {.deadline_seconds = 2.0});
  std::vector<Batch> batches = batches_of(100);
  batches[1].topk_ids[2 * 70 + 1] = 9;
  world.call({&batches[0], &batches[1], &batches[2]}, 200);
  for (std::size_t rank = 0; rank < 3; ++rank) {
    EXPECT_THAT(world.message(rank), HasSubstr("topk_ids[70][1] of rank 1 is 9, wanted -1 (masked) or 0..8"));
  }
  expect_gpu_works();
}

TEST_P(Faults, ranks_that_disagree_about_max_tokens_are_told) {
  CudaWorld world(problem_, experts_, {.deadline_seconds = 2.0});
  std::vector<Batch> batches = batches_of(30);
  std::vector<CudaWorld::Uploaded> uploaded;
  for (std::size_t rank = 0; rank < 3; ++rank) uploaded.push_back(world.upload(rank, batches[rank]));
  world.synchronize_all();
  for (std::size_t rank = 0; rank < 3; ++rank) {
    world.layer(rank).forward({.x = {uploaded[rank].x.as(), 30},
                               .routing = {uploaded[rank].ids.as<std::int32_t>(), uploaded[rank].weights.as<float>()},
                               .y = {uploaded[rank].y.as(), 30},
                               .max_tokens = rank == 1 ? 200 : 100},
                              world.stream(rank));
  }
  world.synchronize_all();
  for (std::size_t rank = 0; rank < 3; ++rank) EXPECT_THROW(world.layer(rank).status(), FabricError);
}

INSTANTIATE_TEST_SUITE_P(BothForms, Faults, ::testing::Values(WireForm::counted, WireForm::lined),
                         [](const auto& info) { return std::string(to_string(info.param)); });

TEST(Launch, more_blocks_than_fit_are_refused) {
  FLASHMOE_REQUIRE_GPUS(1);
  const Problem problem = problem_of(WireForm::counted);
  EXPECT_THROW(CudaWorld(problem, std::make_shared<DenseExperts>(problem, 1), {.num_blocks = 100}), CudaError);
}

TEST(Launch, fp32_is_refused_with_the_way_out) {
  FLASHMOE_REQUIRE_GPUS(1);
  Problem problem = problem_of(WireForm::counted);
  problem.dtype = DType::fp32;
  EXPECT_THROW(CudaWorld(problem, std::make_shared<DenseExperts>(problem, 1)), InvalidArgument);
}

TEST(Memory, creating_and_destroying_leaks_nothing) {
  FLASHMOE_REQUIRE_GPUS(1);
  const Problem problem = problem_of(WireForm::counted);
  const auto experts = std::make_shared<DenseExperts>(problem, 1);
  const auto free_bytes = [] {
    std::size_t free = 0;
    std::size_t total = 0;
    cuda_backend::check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    return free;
  };
  { CudaWorld warm_up(problem, experts); }
  const std::size_t before = free_bytes();
  for (int i = 0; i < 200; ++i) {
    CudaWorld world(problem, experts);
    Batch batch = make_batch(problem, 5, 1);
    Batch none = make_batch(problem, 0, 1);
    if (i % 50 == 0) {
      world.call({&batch, &none, &batch}, 200);
      ASSERT_EQ(world.message(0), "");
    }
  }
  EXPECT_NEAR(static_cast<double>(free_bytes()), static_cast<double>(before), 10e6);
}

}  // namespace
}  // namespace flashmoe::test
