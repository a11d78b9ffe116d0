// Late, absent and wrong ranks: an error that names who and why, within the deadline, and a GPU that goes on working.
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "device.hpp"
#include "flashmoe/error.hpp"
#include "support/cuda_world.hpp"

namespace flashmoe::test {
namespace {

using std::chrono::duration;
using std::chrono::steady_clock;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

class GpuFaults : public ::testing::TestWithParam<WireForm> {
 protected:
  static constexpr double kDeadline = 0.5;
  static constexpr double kGrace = 3.0;  ///< seconds that a busy machine may add to deadline and settling

  void SetUp() override { FLASHMOE_REQUIRE_GPUS(1); }

  std::vector<Batch*> all() { return {&batches_[0], &batches_[1], &batches_[2]}; }

  void expect_right(const CudaWorld& world) {
    for (std::size_t rank = 0; rank < 3; ++rank) {
      ASSERT_EQ(world.message(rank), "");
      const auto wanted = reference::layer(problem_, *experts_, batches_[rank].x_view(), batches_[rank].routing());
      EXPECT_LE(error_in_bars(problem_, batches_[rank], wanted), 1.0);
    }
  }
  /// A fresh layer on the same GPU still computes.
  void expect_gpu_works() {
    batches_ = make_batches(problem_, {100, 100, 100}, 2);
    CudaWorld world(problem_, experts_);
    world.call(all(), 200);
    expect_right(world);
  }

  Problem problem_{.num_ranks = 3, .hidden = 64, .intermediate = 48, .num_experts = 9, .top_k = 2, .max_tokens = 200,
                   .wire_form = GetParam(), .wave_tokens = 64};
  std::shared_ptr<DenseExperts> experts_ = std::make_shared<DenseExperts>(problem_, 1);
  std::vector<Batch> batches_ = make_batches(problem_, {100, 100, 100}, 1);
};

TEST_P(GpuFaults, DEAD2_a_rank_that_never_launches_is_named_by_all_others) {
  CudaWorld world(problem_, experts_);
  for (int call = 0; call < 3; ++call) world.call(all(), 200);
  expect_right(world);
  const auto begin = steady_clock::now();
  world.call({&batches_[0], nullptr, &batches_[2]}, 200, kDeadline);
  const double seconds = duration<double>(steady_clock::now() - begin).count();
  EXPECT_GE(seconds, kDeadline);
  EXPECT_LE(seconds, kDeadline + kGrace);
  for (const std::size_t rank : {0u, 2u}) {
    EXPECT_TRUE(world.threw<Timeout>(rank));
    EXPECT_THAT(world.message(rank), HasSubstr("waited 0.5 s for rank 1 to enter call 3"));
  }
  expect_gpu_works();
}

TEST_P(GpuFaults, a_time_out_is_raised_by_status_and_by_every_later_call) {
  CudaWorld world(problem_, experts_);
  for (const std::size_t rank : {0u, 2u}) {
    const cuda_backend::DeviceGuard guard(world.context(rank).device());
    world.seat(rank).load(batches_[rank]);
    // Asynchronous: the launch itself knows of nothing.
    ASSERT_NO_THROW(world.layer(rank).forward(world.seat(rank).input(100, 200, kDeadline), world.stream(rank)));
    ASSERT_NO_THROW(world.layer(rank).status());
  }
  world.synchronize_all();
  for (const std::size_t rank : {0u, 2u}) {
    EXPECT_THROW(world.layer(rank).status(), Timeout);
    for (int call = 0; call < 2; ++call) {
      EXPECT_THROW(world.layer(rank).forward(world.seat(rank).input(100, 200), world.stream(rank)), Timeout);
    }
  }
  // The late rank finds a dead heap, at once.
  const auto begin = steady_clock::now();
  world.call({nullptr, &batches_[1], nullptr}, 200, 20.0);
  EXPECT_LE(duration<double>(steady_clock::now() - begin).count(), kGrace);
  EXPECT_TRUE(world.threw<Timeout>(1));
  EXPECT_THAT(world.message(1), HasSubstr("for rank 1 to enter call 0"));
  expect_gpu_works();
}

TEST_P(GpuFaults, calls_on_their_way_when_a_rank_gives_up_leave_everything_alone) {
  CudaWorld first(problem_, experts_);
  CudaWorld second(problem_, experts_);
  for (int call = 0; call < 20; ++call) {
    for (std::size_t rank = 0; rank < 3; ++rank) {
      // Rank 1 calls the two heaps in the other order: on full GPUs each rank waits for a kernel that has no room.
      for (CudaWorld* world : {rank == 1 ? &second : &first, rank == 1 ? &first : &second}) {
        const cuda_backend::DeviceGuard guard(world->context(rank).device());
        if (call == 0) world->seat(rank).load(batches_[rank]);
        world->layer(rank).forward(world->seat(rank).input(100, 200, kDeadline), world->stream(rank));
      }
    }
  }
  first.synchronize_all();  // an illegal access would be thrown here
  second.synchronize_all();
  for (CudaWorld* world : {&first, &second}) {
    for (std::size_t rank = 0; rank < 3; ++rank) EXPECT_THROW(world->layer(rank).status(), Timeout) << rank;
  }
  expect_gpu_works();
}

TEST_P(GpuFaults, two_absent_ranks_are_as_good_as_one) {
  CudaWorld world(problem_, experts_);
  world.call({nullptr, &batches_[1], nullptr}, 200, kDeadline);
  EXPECT_TRUE(world.threw<Timeout>(1));
  EXPECT_THAT(world.message(1), ContainsRegex("for rank [02] to enter call 0"));
}

TEST_P(GpuFaults, DEAD5_a_rank_that_makes_fewer_calls_is_named) {
  CudaWorld world(problem_, experts_);
  world.each_rank([&](std::size_t rank) {
    for (int call = 0; call < (rank == 2 ? 2 : 4); ++call) world.forward(rank, batches_[rank], 200, kDeadline);
  });
  EXPECT_EQ(world.message(2), "");
  for (const std::size_t rank : {0u, 1u}) {
    EXPECT_TRUE(world.threw<Timeout>(rank));
    EXPECT_THAT(world.message(rank), HasSubstr("for rank 2 to enter call 2"));
  }
}

TEST_P(GpuFaults, DESYNC7_a_straggler_of_one_second_only_delays) {
  CudaWorld world(problem_, experts_);
  world.each_rank([&](std::size_t rank) {
    if (rank == 1) std::this_thread::sleep_for(std::chrono::seconds(1));
    world.forward(rank, batches_[rank], 200, 10.0);
  });
  expect_right(world);
}

TEST_P(GpuFaults, a_wrong_id_is_the_callers_error_on_its_rank_and_a_fabric_error_elsewhere) {
  for (const std::int32_t id : {9, -2}) {
    batches_ = make_batches(problem_, {100, 100, 100}, 1);
    batches_[1].topk_ids[2 * 70 + 1] = id;
    CudaWorld world(problem_, experts_);
    world.call(all(), 200);
    EXPECT_TRUE(world.threw<InvalidArgument>(1));
    EXPECT_TRUE(world.threw<FabricError>(0));
    EXPECT_TRUE(world.threw<FabricError>(2));
    for (std::size_t rank = 0; rank < 3; ++rank) {
      EXPECT_THAT(world.message(rank),
                  HasSubstr("topk_ids[70][1] of rank 1 is " + std::to_string(id) + ", wanted -1 (masked) or 0..8"));
    }
  }
  expect_gpu_works();
}

TEST_P(GpuFaults, DESYNC1_ranks_that_disagree_about_max_tokens_are_told) {
  CudaWorld world(problem_, experts_);
  world.each_rank([&](std::size_t rank) { world.forward(rank, batches_[rank], rank == 1 ? 200 : 100); });
  for (std::size_t rank = 0; rank < 3; ++rank) {
    EXPECT_TRUE(world.threw<FabricError>(rank)) << world.message(rank);
    EXPECT_THAT(world.message(rank), HasSubstr("max_tokens of the call must be the same on all ranks"));
  }
}

TEST_P(GpuFaults, ranks_that_call_the_layers_of_a_heap_in_another_order_are_told) {
  CudaWorld world(problem_, std::vector<std::shared_ptr<const ExpertSource>>{experts_, experts_});
  world.each_rank([&](std::size_t rank) {
    const std::size_t first = rank == 2 ? 1 : 0;
    world.forward(rank, batches_[rank], 200, 0, first);
    world.forward(rank, batches_[rank], 200, 0, 1 - first);
  });
  for (std::size_t rank = 0; rank < 3; ++rank) {
    EXPECT_TRUE(world.threw<FabricError>(rank)) << world.message(rank);
    EXPECT_THAT(world.message(rank), HasSubstr("must call the layers of one heap in the same order"));
  }
}

INSTANTIATE_TEST_SUITE_P(BothForms, GpuFaults, ::testing::Values(WireForm::counted, WireForm::lined),
                         [](const auto& info) { return std::string(to_string(info.param)); });

}  // namespace
}  // namespace flashmoe::test
