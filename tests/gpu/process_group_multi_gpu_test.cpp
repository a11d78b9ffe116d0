// Groups of processes through the public interface, one GPU each.
// The test itself never calls CUDA: a process that has cannot be forked any more.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "flashmoe/layer.hpp"
#include "count_gpus.hpp"
#include "support/processes.hpp"
#include "support/uploaded.hpp"

namespace flashmoe::test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::StartsWith;

Problem problem_of(int num_ranks, int hidden = 256) {
  return {.num_ranks = num_ranks, .hidden = hidden, .intermediate = 96, .num_experts = 4 * num_ranks, .top_k = 3,
          .max_tokens = 200, .up_bias = true};
}

/// One rank's layer of a group, with its tensors on the GPU.
class RankLayerEnd {
 public:
  RankLayerEnd(const Group& group, int rank, int device, const Problem& problem)
      : rank_(rank), device_(device), problem_(problem), experts_(problem, 3), weights_(device, problem, experts_, rank),
        layer_(group, rank, problem, weights_.view()) {}

  /// One call against the reference; empty when right.
  std::string call(std::int64_t num_tokens, std::uint64_t seed) {
    Batch batch = make_batch(problem_, num_tokens, 10 * seed + static_cast<std::uint64_t>(rank_), Routing::any);
    const UploadedBatch uploaded(device_, batch);
    layer_.forward({uploaded.x.as(), num_tokens}, {uploaded.ids.as<std::int32_t>(), uploaded.weights.as<float>()},
                   {uploaded.y.as(), num_tokens});
    cuda_backend::check(cudaMemcpy(batch.y.data(), uploaded.y.as(), batch.y.size(), cudaMemcpyDeviceToHost), "cudaMemcpy");
    const auto wanted = reference::layer(problem_, experts_, batch.x_view(), batch.routing());
    const double error = error_in_bars(problem_, batch, wanted);
    return error <= 1.0 ? "" : fmt::format("call {} is wrong by {} error bars;", seed, error);
  }

 private:
  int rank_;
  int device_;
  Problem problem_;
  DenseExperts experts_;
  UploadedWeights weights_;
  Layer layer_;
};

class ProcessGroupOnGpus : public ::testing::Test {
 protected:
  void SetUp() override {
    static const int num_gpus = count_gpus();
    if (num_gpus < 2) GTEST_SKIP() << "needs 2 GPUs, this machine has " << num_gpus;
    num_ranks_ = std::min(num_gpus, 4);
    group_ = fmt::format("{}-{:.30}", getpid(), ::testing::UnitTest::GetInstance()->current_test_info()->name());
  }
  using RankBody = std::function<std::string(const ProcessRank& place)>;
  std::vector<std::string> run(const RankBody& body) {
    for (int rank = 0; rank < num_ranks_; ++rank) {
      processes_.start([=, place = ProcessRank{group_, rank, num_ranks_, rank}](const Processes::Say&) {
        return body(place);
      });
    }
    return processes_.finish_all();
  }

  int num_ranks_ = 0;
  std::string group_;
  Processes processes_;
};

TEST_F(ProcessGroupOnGpus, layers_of_a_group_are_right_and_go_in_any_order) {
  const auto said = run([](const ProcessRank& place) {
    std::optional<Group> group = Group::join(place, {.backend = BackendKind::cuda, .deadline_seconds = 10});
    auto first = std::make_optional<RankLayerEnd>(*group, place.rank, place.device, problem_of(place.num_ranks));
    auto second = std::make_optional<RankLayerEnd>(*group, place.rank, place.device, problem_of(place.num_ranks));
    auto third = std::make_optional<RankLayerEnd>(*group, place.rank, place.device, problem_of(place.num_ranks, 512));
    std::string wrong;
    for (std::uint64_t call = 0; call < 3; ++call) {
      const std::int64_t tokens = (place.rank * 67 + static_cast<int>(call) * 31) % 200;
      wrong += first->call(tokens, call);
      wrong += third->call(200 - tokens, call);
      wrong += second->call(tokens / 2, call);
    }
    if (place.rank % 2 == 0) group.reset();
    first.reset();
    wrong += second->call(77, 9);
    wrong += third->call(0, 9);
    if (place.rank == 0) third.reset();
    second.reset();
    return wrong.empty() ? std::string("right") : wrong;
  });
  EXPECT_THAT(said, Each(std::string("right")));
}

TEST_F(ProcessGroupOnGpus, a_rank_that_never_calls_is_named_and_the_next_layer_runs) {
  const auto said = run([](const ProcessRank& place) {
    const Group group = Group::join(place, {.backend = BackendKind::cuda, .deadline_seconds = 1});
    const Problem problem = problem_of(place.num_ranks);
    std::string ended;
    RankLayerEnd broken(group, place.rank, place.device, problem);
    if (place.rank != 1) {
      try {
        ended = broken.call(50, 1) + "returned";
      } catch (const Timeout& error) {
        ended = error.what();
      }
    } else {
      std::this_thread::sleep_for(std::chrono::seconds(3));
    }
    RankLayerEnd next(group, place.rank, place.device, problem);
    return next.call(50, 2) + ended;
  });
  EXPECT_EQ(said[1], "");
  for (std::size_t rank = 0; rank < said.size(); ++rank) {
    if (rank != 1) {
      EXPECT_THAT(said[rank], AllOf(HasSubstr("for rank 1 to enter call 0"), HasSubstr(" 1 s")));
    }
  }
}

TEST_F(ProcessGroupOnGpus, a_straggler_of_one_second_only_delays) {
  const auto said = run([](const ProcessRank& place) {
    const Group group = Group::join(place, {.backend = BackendKind::cuda, .deadline_seconds = 10});
    RankLayerEnd end(group, place.rank, place.device, problem_of(place.num_ranks));
    std::string wrong = end.call(100, 0);
    if (place.rank == 1) std::this_thread::sleep_for(std::chrono::seconds(1));
    const auto begin = std::chrono::steady_clock::now();
    wrong += end.call(150, 1);
    const double waited = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (place.rank != 1 && waited < 0.5) wrong += fmt::format("waited {} s only", waited);
    return wrong.empty() ? std::string("right") : wrong;
  });
  EXPECT_THAT(said, Each(std::string("right")));
}

TEST_F(ProcessGroupOnGpus, processes_that_see_their_own_gpu_alone_work_together) {
  const auto said = run([](ProcessRank place) {
    setenv("CUDA_VISIBLE_DEVICES", fmt::format("{}", place.rank).c_str(), 1);
    place.device = 0;
    const Group group = Group::join(place, {.backend = BackendKind::cuda, .deadline_seconds = 10});
    RankLayerEnd end(group, place.rank, place.device, problem_of(place.num_ranks));
    std::string wrong = end.call(120, 1);
    wrong += end.call(3, 2);
    return wrong.empty() ? std::string("right") : wrong;
  });
  EXPECT_THAT(said, Each(std::string("right")));
}

TEST_F(ProcessGroupOnGpus, a_device_that_is_not_there_is_told_to_all) {
  const auto said = run([](ProcessRank place) {
    if (place.rank == 1) place.device = 99;
    const Group group = Group::join(place, {.backend = BackendKind::cuda});
    return std::string("joined");
  });
  EXPECT_THAT(said, Each(HasSubstr("device (99) must be in 0..")));
  EXPECT_THAT(said[1], StartsWith("CudaError: "));
}

TEST_F(ProcessGroupOnGpus, one_gpu_for_two_ranks_is_refused_on_all) {
  const auto said = run([](ProcessRank place) {
    if (place.rank == 1) {
      // The second of those that this process sees is rank 0's.
      setenv("CUDA_VISIBLE_DEVICES", "1,0", 1);
      place.device = 1;
    }
    const Group group = Group::join(place, {.backend = BackendKind::cuda});
    return std::string("joined");
  });
  EXPECT_THAT(said, Each(StartsWith("FabricError: ranks 0 and 1 of group")));
}

}  // namespace
}  // namespace flashmoe::test
