// Ranks that are processes come to the same layers and heaps, or to the same sentence. On heaps without memory: what a
// real one adds is shown by gpu/process_group_multi_gpu_test.cpp.
#include "api/process_group.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <span>
#include <string_view>

#include "cpu/layer.hpp"
#include "flashmoe/error.hpp"
#include "flashmoe/version.hpp"
#include "support/processes.hpp"

namespace flashmoe::test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::StartsWith;

/// What the fakes of one process are to do, and did.
struct Script {
  bool layer_fails = false;
  bool heap_dies = false;
  char gpu = 0;
  std::uint64_t last_layer_id = 0;
  int num_heaps = 0;
};

class FakeHeap final : public SharedHeap {
 public:
  FakeHeap(const Geometry& geometry, std::unique_ptr<fabric::Bootstrap> meeting, Script& script)
      : layout_(make_heap_layout(geometry)), meeting_(std::move(meeting)), script_(script) {
    ++script_.num_heaps;
    meeting_->barrier();
  }
  const HeapLayout& layout() const override { return layout_; }
  bool dead() const override { return script_.heap_dies; }
  std::unique_ptr<RankLayer> make_layer(int, const Problem&, const RankWeights&, std::uint64_t layer_id) override {
    if (script_.layer_fails) throw CudaError("GPU 0 has no memory left");
    script_.last_layer_id = layer_id;
    return nullptr;
  }

 private:
  HeapLayout layout_;
  std::unique_ptr<fabric::Bootstrap> meeting_;
  Script& script_;
};

class FakeBackend final : public Backend {
 public:
  explicit FakeBackend(Script& script) : script_(script) {}
  std::string engine_name(const Problem&) const override { return "none"; }
  int device_of(int rank) const override { return rank; }
  fabric::GpuUuid gpu_uuid(int) const override { return {script_.gpu}; }
  EngineTraits engine_traits(const Problem&) const override { return cpu::engine_traits(); }
  std::shared_ptr<const LoadedExperts> load(int, const Problem&, std::shared_ptr<const ExpertSource>) const override {
    return nullptr;
  }
  std::size_t local_bytes(const Geometry&) const override { return 0; }
  std::shared_ptr<SharedHeap> make_heap(const Geometry& geometry, std::unique_ptr<fabric::Bootstrap> meeting) const override {
    return std::make_shared<FakeHeap>(geometry, std::move(meeting), script_);
  }

 private:
  Script& script_;
};

constexpr int kNumRanks = 3;

Problem problem_of(int hidden) {
  return {.num_ranks = kNumRanks, .hidden = hidden, .intermediate = 16, .num_experts = 6, .top_k = 2, .max_tokens = 9};
}

/// One process's rank.
struct RankEnd {
  RankEnd(const std::string& group_id, int rank, double meeting_seconds = 30)
      : rank(rank),
        script{.gpu = static_cast<char>(rank)},
        group({.group_id = group_id, .rank = rank, .num_ranks = kNumRanks, .device = rank},
              {.backend = BackendKind::cuda, .meeting_seconds = meeting_seconds},
              [this] { return std::make_unique<FakeBackend>(script); }) {}

  GroupState::CreatedLayer create(int hidden) { return group.create_layer(rank, problem_of(hidden), WeightsView{}); }

  /// What creating a layer ends with.
  std::string try_to_create(int hidden) {
    try {
      create(hidden);
      return fmt::format("layer {};", script.last_layer_id);
    } catch (const Error& error) {
      return describe_exception(error) + ";";
    }
  }

  int rank;
  Script script;
  ProcessGroup group;
};

class ProcessGroupTest : public ::testing::Test {
 protected:
  void start(int rank, const std::function<std::string(RankEnd&)>& body, double meeting_seconds = 30) {
    processes_.start([=, group = group_](const Processes::Say&) {
      RankEnd end(group, rank, meeting_seconds);
      return body(end);
    });
  }
  std::vector<std::string> run(const std::function<std::string(RankEnd&)>& body) {
    for (int rank = 0; rank < kNumRanks; ++rank) start(rank, body);
    return processes_.finish_all();
  }

  std::string group_ = fmt::format("{}-{:.30}", getpid(), ::testing::UnitTest::GetInstance()->current_test_info()->name());
  Processes processes_;
};

TEST_F(ProcessGroupTest, layers_of_one_geometry_share_a_heap_and_count_up) {
  const auto said = run([](RankEnd& end) {
    const auto first = end.create(64);
    const auto second = end.create(64);
    const auto third = end.create(128);
    return fmt::format("{} {} {} {}", first.heap == second.heap, first.heap == third.heap, end.script.num_heaps,
                       end.script.last_layer_id);
  });
  EXPECT_THAT(said, Each(std::string("true false 2 3")));
}

TEST_F(ProcessGroupTest, a_heap_is_kept_only_where_all_have_it) {
  const auto said = run([](RankEnd& end) {
    auto first = end.create(64);
    if (end.rank == 1) first = {};
    const auto second = end.create(64);  // rank 1 has let the first heap go
    end.script.heap_dies = end.rank == 2;
    const auto third = end.create(64);  // rank 2 has seen a call on it fail
    return fmt::format("{} {} {}", first.heap == second.heap, second.heap == third.heap, end.script.num_heaps);
  });
  EXPECT_THAT(said, Each(std::string("false false 3")));
}

TEST_F(ProcessGroupTest, another_problem_is_named_on_all_ranks_and_the_group_goes_on) {
  const auto said = run([](RankEnd& end) {
    const std::string refused = end.try_to_create(end.rank == 2 ? 128 : 64);
    return refused + end.try_to_create(64);
  });
  EXPECT_THAT(said, Each(std::string("FabricError: layer 1 must be the same on all ranks, but hidden is 64 on rank 0 and 128 "
                                     "on rank 2: give every rank the same problem;layer 1;")));
}

TEST_F(ProcessGroupTest, what_one_rank_cannot_create_is_thrown_on_all_and_does_not_count) {
  const auto said = run([](RankEnd& end) {
    end.script.layer_fails = end.rank == 1;
    const std::string failed = end.try_to_create(64);
    end.script.layer_fails = false;
    return failed + end.try_to_create(64);
  });
  EXPECT_EQ(said[1], "CudaError: GPU 0 has no memory left;layer 1;");
  for (const int rank : {0, 2}) {
    EXPECT_EQ(said[static_cast<std::size_t>(rank)],
              "FabricError: layer 1 was not created because rank 1 could not create its end: GPU 0 has no memory left;"
              "layer 1;");
  }
}

TEST_F(ProcessGroupTest, a_rank_that_ends_is_named_when_the_others_go_on) {
  const auto said = run([](RankEnd& end) {
    const std::string first = end.try_to_create(64);
    return end.rank == 1 ? "gone" : first + end.try_to_create(64);
  });
  for (const int rank : {0, 2}) {
    EXPECT_THAT(said[static_cast<std::size_t>(rank)],
                AllOf(StartsWith("layer 1;FabricError: rank 1 (process "), HasSubstr("left or died before allgather")));
  }
}

TEST_F(ProcessGroupTest, ranks_that_do_not_come_are_named) {
  for (const int rank : {0, 2}) start(rank, [](RankEnd&) { return std::string("met"); }, 2.0);
  EXPECT_THAT(processes_.finish_all(), Each(HasSubstr("Timeout: rank 1 of group")));
}

TEST_F(ProcessGroupTest, a_rank_without_its_device_ends_the_group_for_all) {
  for (int rank = 0; rank < kNumRanks; ++rank) {
    processes_.start([=, group = group_](const Processes::Say&) {
      Script script;
      const ProcessGroup joined({.group_id = group, .rank = rank, .num_ranks = kNumRanks, .device = rank},
                                {.backend = BackendKind::cuda}, [&]() -> std::unique_ptr<Backend> {
                                  if (rank == 1) throw CudaError("device (1) must be in 0..0");
                                  return std::make_unique<FakeBackend>(script);
                                });
      return std::string("joined");
    });
  }
  const auto said = processes_.finish_all();
  EXPECT_EQ(said[1], "CudaError: device (1) must be in 0..0");
  for (const int rank : {0, 2}) {
    EXPECT_THAT(said[static_cast<std::size_t>(rank)],
                AllOf(StartsWith("FabricError: rank 1 (process "), HasSubstr("gave up: device (1) must be in 0..0")));
  }
}

TEST_F(ProcessGroupTest, GROUP4_ranks_that_chose_one_gpu_are_named_on_all) {
  for (int rank = 0; rank < kNumRanks; ++rank) {
    processes_.start([=, group = group_](const Processes::Say&) {
      Script script{.gpu = static_cast<char>(rank == 1 ? 1 : 0)};
      const ProcessGroup joined({.group_id = group, .rank = rank, .num_ranks = kNumRanks, .device = rank},
                                {.backend = BackendKind::cuda}, [&] { return std::make_unique<FakeBackend>(script); });
      return std::string("joined");
    });
  }
  EXPECT_THAT(processes_.finish_all(),
              Each(StartsWith(fmt::format("FabricError: ranks 0 and 2 of group '{}' have chosen one GPU (device 0 of ",
                                          group_))));
}

TEST_F(ProcessGroupTest, the_version_that_differs_is_named) {
  processes_.start([group = group_](const Processes::Say&) {
    constexpr std::string_view kOther = "9.9.9";
    fabric::Bootstrap bootstrap(group, 0, kNumRanks, 30);
    bootstrap.allgather(std::as_bytes(std::span(kOther.data(), kOther.size())));
    return std::string("done");
  });
  for (const int rank : {1, 2}) start(rank, [](RankEnd&) { return std::string("joined"); });
  const auto said = processes_.finish_all();
  EXPECT_THAT(said[1], HasSubstr(fmt::format("has flashmoe 9.9.9 on rank 0 and {} on rank 1: install one version", version())));
}

TEST_F(ProcessGroupTest, only_the_own_rank_may_be_asked_for) {
  const auto said = run([](RankEnd& end) -> std::string {
    end.group.require_rank(end.rank);
    try {
      end.group.require_rank((end.rank + 1) % kNumRanks);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "accepted";
  });
  EXPECT_THAT(said[1], StartsWith("rank (2) must be 1, that of this process in group"));
}

TEST(ProcessGroupArguments, are_checked_before_anybody_is_waited_for) {
  const auto make = []() -> std::unique_ptr<Backend> { return nullptr; };
  const GroupOptions options{.backend = BackendKind::cuda};
  const auto refuses = [&](const ProcessRank& place, const GroupOptions& with, const char* message) {
    EXPECT_THAT([&] { ProcessGroup(place, with, make); }, ::testing::ThrowsMessage<InvalidArgument>(HasSubstr(message)));
  };
  refuses({.group_id = std::string(49, 'x'), .rank = 0, .num_ranks = 2}, options,
          "group_id must have 1..48 printable ASCII characters, got 49");
  refuses({.group_id = "", .rank = 0, .num_ranks = 2}, options,
          "group_id must have 1..48 printable ASCII characters, got 0");
  refuses({.group_id = "g", .rank = 2, .num_ranks = 2}, options, "rank must be 0..1");
  refuses({.group_id = "g", .rank = 0, .num_ranks = 65}, options, "num_ranks (65) must be between 1 and 64");
  refuses({.group_id = "g", .rank = 0, .num_ranks = 2}, {.backend = BackendKind::cuda, .meeting_seconds = 0},
          "meeting_seconds (0) must be above 0");
}

}  // namespace
}  // namespace flashmoe::test
