// Absent, late, wrong and failing ranks on the CPU backend: every other rank gets one sentence that names the culprit,
// soon, and the heap is dead afterwards.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <stdexcept>
#include <thread>

#include "flashmoe/error.hpp"
#include "support/cpu_world.hpp"

namespace flashmoe::test {
namespace {

using std::chrono::duration;
using std::chrono::steady_clock;
using testing::AllOf;
using testing::HasSubstr;

class Faults : public testing::TestWithParam<WireForm> {
 protected:
  static constexpr double kDeadline = 0.5;
  static constexpr double kGrace = 3.0;  ///< seconds that a busy machine may add to deadline and settling

  Problem problem_{.num_ranks = 3, .hidden = 64, .intermediate = 48, .num_experts = 9, .top_k = 2, .max_tokens = 200,
                   .wire_form = GetParam(), .wave_tokens = 64};
  std::shared_ptr<DenseExperts> experts_ = std::make_shared<DenseExperts>(problem_, 1);
  CpuWorld world_{problem_, experts_};
  std::vector<Batch> batches_ = make_batches(problem_, {100, 100, 100}, 1);

  std::vector<Batch*> all_but(std::size_t absent) {
    std::vector<Batch*> pointers{&batches_[0], &batches_[1], &batches_[2]};
    pointers[absent] = nullptr;
    return pointers;
  }
  void expect_dead(std::size_t rank, const std::string& reason) {
    world_.each_rank([&](std::size_t caller) {
      if (caller == rank) world_.forward(rank, batches_[rank], 200, kDeadline);
    });
    EXPECT_THAT(world_.message(rank), AllOf(HasSubstr("heap is dead"), HasSubstr(reason)));
  }
};

TEST_P(Faults, a_rank_that_never_enters_is_named_by_all_others) {
  for (int call = 0; call < 3; ++call) {
    world_.call({&batches_[0], &batches_[1], &batches_[2]}, 200);
    for (std::size_t rank = 0; rank < 3; ++rank) ASSERT_EQ(world_.message(rank), "");
  }
  const auto begin = steady_clock::now();
  world_.call(all_but(1), 200, kDeadline);
  const double seconds = duration<double>(steady_clock::now() - begin).count();
  EXPECT_GE(seconds, kDeadline);
  EXPECT_LE(seconds, kDeadline + kGrace);
  for (const std::size_t rank : {0u, 2u}) {
    EXPECT_TRUE(world_.threw<Timeout>(rank));
    EXPECT_THAT(world_.message(rank), HasSubstr("waited 0.5 s for rank 1 to enter call 3"));
  }
  expect_dead(0, "for rank 1 to enter call 3");
  expect_dead(1, "for rank 1 to enter call 3");
}

TEST_P(Faults, two_absent_ranks_are_as_good_as_one) {
  world_.call({nullptr, &batches_[1], nullptr}, 200, kDeadline);
  EXPECT_TRUE(world_.threw<Timeout>(1));
  EXPECT_THAT(world_.message(1), testing::ContainsRegex("for rank [02] to enter call 0"));
}

TEST_P(Faults, a_rank_that_makes_fewer_calls_is_named) {
  world_.each_rank([&](std::size_t rank) {
    for (int call = 0; call < (rank == 2 ? 2 : 4); ++call) world_.forward(rank, batches_[rank], 200, kDeadline);
  });
  EXPECT_EQ(world_.message(2), "");
  for (const std::size_t rank : {0u, 1u}) {
    EXPECT_TRUE(world_.threw<Timeout>(rank));
    EXPECT_THAT(world_.message(rank), HasSubstr("for rank 2 to enter call 2"));
  }
}

TEST_P(Faults, a_straggler_of_one_second_only_delays) {
  world_.each_rank([&](std::size_t rank) {
    if (rank == 1) std::this_thread::sleep_for(std::chrono::seconds(1));
    world_.forward(rank, batches_[rank], 200, 10.0);
  });
  for (std::size_t rank = 0; rank < 3; ++rank) {
    ASSERT_EQ(world_.message(rank), "");
    const auto wanted = reference::layer(problem_, *experts_, batches_[rank].x_view(), batches_[rank].routing());
    EXPECT_LE(error_in_bars(problem_, batches_[rank], wanted), 1.0);
  }
}

TEST_P(Faults, a_wrong_id_is_the_callers_error_on_its_rank_and_a_fabric_error_elsewhere) {
  batches_[1].topk_ids[2 * 70 + 1] = 9;
  world_.call({&batches_[0], &batches_[1], &batches_[2]}, 200, 5.0);
  EXPECT_TRUE(world_.threw<InvalidArgument>(1));
  EXPECT_TRUE(world_.threw<FabricError>(0));
  EXPECT_TRUE(world_.threw<FabricError>(2));
  for (std::size_t rank = 0; rank < 3; ++rank) {
    EXPECT_THAT(world_.message(rank), HasSubstr("topk_ids[70][1] of rank 1 is 9, wanted -1 (masked) or 0..8"));
  }
  expect_dead(2, "topk_ids[70][1] of rank 1 is 9");
}

TEST_P(Faults, an_id_below_minus_one_is_refused) {
  batches_[0].topk_ids[0] = -2;
  world_.call({&batches_[0], &batches_[1], &batches_[2]}, 200, 5.0);
  EXPECT_TRUE(world_.threw<InvalidArgument>(0));
  EXPECT_THAT(world_.message(2), HasSubstr("topk_ids[0][0] of rank 0 is -2"));
}

TEST_P(Faults, ranks_that_disagree_about_max_tokens_are_told) {
  world_.each_rank([&](std::size_t rank) { world_.forward(rank, batches_[rank], rank == 1 ? 200 : 100, 5.0); });
  for (std::size_t rank = 0; rank < 3; ++rank) {
    EXPECT_TRUE(world_.threw<FabricError>(rank)) << world_.message(rank);
    EXPECT_THAT(world_.message(rank), HasSubstr("max_tokens of the call must be the same on all ranks"));
  }
}

TEST_P(Faults, ranks_that_call_layers_in_another_order_are_told) {
  CpuWorld two_layers(problem_, std::vector<std::shared_ptr<const ExpertSource>>{experts_, experts_});
  two_layers.each_rank([&](std::size_t rank) {
    const std::size_t first = rank == 2 ? 1 : 0;
    two_layers.forward(rank, batches_[rank], 200, 5.0, first);
    two_layers.forward(rank, batches_[rank], 200, 5.0, 1 - first);
  });
  for (std::size_t rank = 0; rank < 3; ++rank) {
    EXPECT_TRUE(two_layers.threw<FabricError>(rank)) << two_layers.message(rank);
    EXPECT_THAT(two_layers.message(rank), HasSubstr("must call the layers of one heap in the same order"));
  }
}

/// Experts of which one cannot be had.
class BrokenExperts : public ExpertSource {
 public:
  BrokenExperts(std::shared_ptr<const ExpertSource> experts, int broken) : experts_(std::move(experts)), broken_(broken) {}
  std::shared_ptr<const ExpertParameters> expert(int expert_index) const override {
    if (expert_index == broken_) throw std::runtime_error("the disk is gone");
    return experts_->expert(expert_index);
  }

 private:
  std::shared_ptr<const ExpertSource> experts_;
  int broken_;
};

TEST_P(Faults, an_engine_that_throws_is_rethrown_on_its_rank_and_named_on_the_others) {
  CpuWorld world(problem_, std::make_shared<BrokenExperts>(experts_, 4));
  world.call({&batches_[0], &batches_[1], &batches_[2]}, 200, 5.0);
  EXPECT_EQ(world.message(1), "the disk is gone");
  for (const std::size_t rank : {0u, 2u}) {
    EXPECT_TRUE(world.threw<FabricError>(rank));
    EXPECT_THAT(world.message(rank), HasSubstr("rank 1 failed"));
  }
}

TEST_P(Faults, bad_arguments_are_refused_before_anything_is_sent) {
  Batch too_many = make_batch(problem_, 101, 7);
  world_.each_rank([&](std::size_t rank) {
    if (rank != 1) return;
    world_.forward(rank, too_many, 100);
  });
  EXPECT_TRUE(world_.threw<InvalidArgument>(1));
  EXPECT_THAT(world_.message(1), HasSubstr("num_tokens (101) must be in 0..100"));
  world_.each_rank([&](std::size_t rank) { world_.forward(rank, batches_[rank], 201); });
  for (std::size_t rank = 0; rank < 3; ++rank) {
    EXPECT_TRUE(world_.threw<InvalidArgument>(rank));
    EXPECT_THAT(world_.message(rank), HasSubstr("max_tokens of the call (201) must be in 0..200"));
  }
  // The heap is as good as new.
  world_.call({&batches_[0], &batches_[1], &batches_[2]}, 200);
  for (std::size_t rank = 0; rank < 3; ++rank) EXPECT_EQ(world_.message(rank), "");
}

INSTANTIATE_TEST_SUITE_P(BothForms, Faults, testing::Values(WireForm::counted, WireForm::lined),
                         [](const auto& it) { return std::string(to_string(it.param)); });

}  // namespace
}  // namespace flashmoe::test
