// One process a GPU over shared heaps: right results, a killed process, nothing left behind.
// FLASHMOE_CASES sets how many random layers are compared (default 40); each rank's largest relative L2 a dtype is printed.
// The test itself never calls CUDA: a process that has cannot be forked any more.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "cpu/reference.hpp"
#include "count_gpus.hpp"
#include "support/dice.hpp"
#include "support/processes.hpp"
#include "support/vmm_rank.hpp"

namespace flashmoe::test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

Problem problem_of(int num_ranks, WireForm form) {
  return {.num_ranks = num_ranks, .hidden = 256, .intermediate = 96, .num_experts = 4 * num_ranks, .top_k = 3,
          .max_tokens = 300, .wire_form = form, .wave_tokens = 128};
}

class VmmTest : public ::testing::Test {
 protected:
  using RankBody = std::function<std::string(int rank, const Processes::Say& say)>;

  void SetUp() override {
    static const int num_gpus = count_gpus();
    if (num_gpus < 2) GTEST_SKIP() << "needs 2 GPUs, this machine has " << num_gpus;
    num_ranks_ = std::min(num_gpus, 4);
    group_ = fmt::format("{}-{:.40}", getpid(), ::testing::UnitTest::GetInstance()->current_test_info()->name());
  }
  void start_all(const RankBody& body) {
    for (int rank = 0; rank < num_ranks_; ++rank) {
      processes_.start([=](const Processes::Say& say) {
        cuda_backend::check(cudaSetDevice(rank), "cudaSetDevice");
        return body(rank, say);
      });
    }
  }

  int num_ranks_ = 0;
  std::string group_;
  Processes processes_;
};

/// Between barriers: a rank that is ahead stores into the others' heaps.
void poison(VmmRank& end, fabric::Bootstrap& all) {
  all.barrier();
  end.heap().poison(all.rank(), 0xff);
  cuda_backend::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  all.barrier();
}

/// Relative L2 of one call of a rank against the reference, and what is wrong with it; empty when right.
struct Checked {
  double error;
  std::string wrong;
};
Checked compare_call(VmmRank& rank_end, const Problem& problem, const ExpertSource& experts, Batch& batch,
                     std::int64_t max_tokens) {
  rank_end.call(batch, max_tokens);
  const auto wanted = reference::layer(problem, experts, batch.x_view(), batch.routing());
  const double error = reference::relative_l2(batch.output(problem), wanted);
  const bool right = error <= error_bar(problem.dtype, wanted.size());
  return {error, right ? "" : fmt::format("relative L2 {} of {} tokens;", error, batch.num_tokens)};
}
std::string check_call(VmmRank& rank_end, const Problem& problem, const ExpertSource& experts, Batch& batch,
                       std::int64_t max_tokens) {
  return compare_call(rank_end, problem, experts, batch, max_tokens).wrong;
}

TEST_F(VmmTest, processes_compute_what_the_reference_does) {
  start_all([=, num_ranks = num_ranks_, group = group_](int rank, const Processes::Say&) {
    fabric::Bootstrap all(group, rank, num_ranks, VmmRank::kMeetingSeconds);
    std::string wrong;
    int group_index = 0;
    for (const DType dtype : {DType::bf16, DType::fp16, DType::tf32, DType::fp64}) {
      for (const WireForm form : {WireForm::counted, WireForm::lined}) {
        for (const Routing routing : {Routing::any, Routing::all_to_one, Routing::last_rank}) {
          Problem problem = problem_of(num_ranks, form);
          problem.dtype = dtype;
          problem.up_bias = problem.down_bias = routing == Routing::any;
          validate(problem);
          const DenseExperts experts(problem, 3);
          VmmRank end(fmt::format("{}.{}", group, group_index++), rank, rank, problem, experts, 10.0);
          for (std::uint64_t call = 0; call < 4; ++call) {
            const auto tokens = static_cast<std::int64_t>((call * 97 + static_cast<std::uint64_t>(rank) * 61) % 301);
            Batch batch = make_batch(problem, tokens, 10 * call + static_cast<std::uint64_t>(rank), routing);
            poison(end, all);
            wrong += check_call(end, problem, experts, batch, 300);
          }
        }
      }
    }
    return wrong.empty() ? std::string("right") : wrong;
  });
  EXPECT_THAT(processes_.finish_all(), Each(std::string("right")));
}

/// The same on every rank.
Problem random_problem(Dice& dice, int num_ranks) {
  Problem problem{.num_ranks = num_ranks,
                  .hidden = 8 * dice.between(1, 40),
                  .intermediate = 8 * dice.between(1, 30),
                  .num_experts = num_ranks * dice.pick({1, 2, 3, 8, 17}),
                  .max_tokens = dice.pick({1, 17, 64, 130, 300}),
                  .dtype = dice.pick({DType::bf16, DType::fp16, DType::tf32, DType::fp64}),
                  .gated = !dice.one_in(3),
                  .up_bias = dice.one_in(3),
                  .down_bias = dice.one_in(3),
                  .weight_on_input = dice.one_in(5),
                  .wire_form = dice.pick({WireForm::automatic, WireForm::counted, WireForm::lined}),
                  .wave_tokens = dice.pick({0, 64, 70, 128}),
                  .wave_ring = dice.pick({0, 1, 2, 3})};
  problem.top_k = std::min(dice.pick({1, 2, 3, 4, 8}), problem.num_experts);
  if (problem.wire_form == WireForm::counted && dice.one_in(2)) problem.result_form = ResultForm::pre_reduced;
  validate(problem);
  return problem;
}

TEST_F(VmmTest, random_layers_are_right) {
  const char* cases = std::getenv("FLASHMOE_CASES");
  const int num_layers = cases != nullptr ? std::atoi(cases) : 40;
  start_all([=, num_ranks = num_ranks_, group = group_](int rank, const Processes::Say&) {
    fabric::Bootstrap all(group, rank, num_ranks, VmmRank::kMeetingSeconds);
    std::string wrong;
    std::map<std::string, double> largest;  // relative L2 by dtype
    for (int layer = 0; layer < num_layers; ++layer) {
      const auto seed = static_cast<std::uint64_t>(layer);
      Dice dice(seed);
      const Problem problem = random_problem(dice, num_ranks);
      const Routing routing = dice.pick({Routing::any, Routing::distinct, Routing::all_to_one, Routing::last_rank});
      const DenseExperts experts(problem, seed);
      VmmRank end(fmt::format("{}.{}", group, layer), rank, rank, problem, experts, 10.0);
      for (std::uint64_t call = 0; call < 3; ++call) {
        Dice own(1000 * seed + 64 * call + static_cast<std::uint64_t>(rank));
        const int tokens = own.one_in(4) ? 0 : own.between(0, static_cast<int>(problem.max_tokens));
        Batch batch = make_batch(problem, tokens, 1000 * seed + 64 * call + static_cast<std::uint64_t>(rank), routing);
        poison(end, all);
        const Checked checked = compare_call(end, problem, experts, batch, problem.max_tokens);
        if (!checked.wrong.empty()) wrong += fmt::format("layer {} call {}: {}", layer, call, checked.wrong);
        double& most = largest[std::string(to_string(problem.dtype))];
        most = std::max(most, checked.error);
      }
    }
    std::string record = fmt::format("right: rank {}, {} layers", rank, num_layers);
    for (const auto& [dtype, error] : largest) record += fmt::format(", {} {:.3g}", dtype, error);
    return wrong.empty() ? record : wrong;
  });
  for (const std::string& said : processes_.finish_all()) {
    EXPECT_THAT(said, ::testing::StartsWith("right: "));
    fmt::print("{}\n", said);
  }
}

TEST_F(VmmTest, a_process_killed_in_a_loop_of_calls_is_named_and_the_others_go_on) {
  constexpr double kDeadline = 2.0;
  constexpr double kGrace = 2.0;
  for (const WireForm form : {WireForm::counted, WireForm::lined}) {
    const int victim = num_ranks_ - 1;
    Processes ranks;
    for (int rank = 0; rank < num_ranks_; ++rank) {
      ranks.start([=, num_ranks = num_ranks_, group = fmt::format("{}{}", group_, static_cast<int>(form))](
                      const Processes::Say& say) -> std::string {
        cuda_backend::check(cudaSetDevice(rank), "cudaSetDevice");
        const Problem problem = problem_of(num_ranks, form);
        const DenseExperts experts(problem, 3);
        Batch batch = make_batch(problem, 200, static_cast<std::uint64_t>(rank), Routing::any);
        auto end = std::make_unique<VmmRank>(group, rank, rank, problem, experts, kDeadline);
        std::string ended;
        auto last_good = std::chrono::steady_clock::now();
        for (int call = 0; ended.empty(); ++call) {
          try {
            end->call(batch, 300);
            last_good = std::chrono::steady_clock::now();
          } catch (const Error& error) {
            ended = describe_exception(error);
          }
          if (call == 50) say("looping;");
        }
        const double waited = std::chrono::duration<double>(std::chrono::steady_clock::now() - last_good).count();
        if (waited > kDeadline + kGrace) return fmt::format("{} came after {} s", ended, waited);

        // The context goes on working while the broken layer is still there, and with a new one of the survivors.
        cuda_backend::DeviceMemory memory = put(rank, batch.x.data(), batch.x.size());
        std::vector<char> back(batch.x.size());
        cuda_backend::check(cudaMemset(memory.as(), 0x5a, back.size()), "cudaMemset");
        cuda_backend::check(cudaMemcpy(back.data(), memory.as(), back.size(), cudaMemcpyDeviceToHost), "cudaMemcpy");
        if (back != std::vector<char>(back.size(), 0x5a)) return "the GPU does not work";
        const Problem fewer = problem_of(num_ranks - 1, form);
        const DenseExperts fewer_experts(fewer, 4);
        VmmRank survivor(group + ".survivors", rank, rank, fewer, fewer_experts, kDeadline);
        Batch next = make_batch(fewer, 100, static_cast<std::uint64_t>(rank), Routing::any);
        const std::string wrong = check_call(survivor, fewer, fewer_experts, next, 300);
        end.reset();
        const std::string later = check_call(survivor, fewer, fewer_experts, next, 300);
        return wrong + later + ended;
      });
    }
    for (int rank = 0; rank < num_ranks_; ++rank) {
      ASSERT_TRUE(ranks.wait_for(static_cast<std::size_t>(rank), "looping;")) << ranks.finish(static_cast<std::size_t>(rank));
    }
    ranks.signal(static_cast<std::size_t>(victim), SIGKILL);
    EXPECT_EQ(ranks.finish(static_cast<std::size_t>(victim)), "looping; (signal 9)");
    for (int rank = 0; rank < victim; ++rank) {
      EXPECT_THAT(ranks.finish(static_cast<std::size_t>(rank)),
                  AllOf(::testing::StartsWith("looping;Timeout: "), HasSubstr(fmt::format("rank {}", victim))));
    }
  }
}

TEST_F(VmmTest, two_hundred_heaps_leak_no_file_and_no_memory) {
  start_all([=, num_ranks = num_ranks_, group = group_](int rank, const Processes::Say&) {
    const Problem problem = problem_of(num_ranks, WireForm::automatic);
    const DenseExperts experts(problem, 3);
    fabric::Bootstrap all(group, rank, num_ranks, VmmRank::kMeetingSeconds);
    const auto free_bytes = [&] {
      all.barrier();  // memory is free when the last process has unmapped it
      std::size_t free = 0;
      std::size_t total = 0;
      cuda_backend::check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
      all.barrier();
      return static_cast<double>(free);
    };
    const auto cycle = [&](int index) {
      VmmRank end(fmt::format("{}.{}", group, index), rank, rank, problem, experts, 10.0);
      if (index % 50 != 0) return;
      Batch batch = make_batch(problem, 40, static_cast<std::uint64_t>(rank));
      end.call(batch, 300);
    };
    cycle(0);
    const double memory = free_bytes();
    const int files = count_open_files();
    for (int index = 1; index <= 200; ++index) cycle(index);
    const double lost = memory - free_bytes();
    return std::abs(lost) <= 10e6 && count_open_files() == files
               ? std::string("clean")
               : fmt::format("{} bytes and {} files lost", lost, count_open_files() - files);
  });
  EXPECT_THAT(processes_.finish_all(), Each(std::string("clean")));
}

TEST_F(VmmTest, heaps_go_in_any_order_and_memory_stays_with_its_last_user) {
  start_all([=, num_ranks = num_ranks_, group = group_](int rank, const Processes::Say&) {
    const Problem problem = problem_of(num_ranks, WireForm::automatic);
    const DenseExperts experts(problem, 3);
    auto first = std::make_unique<VmmRank>(group + ".1", rank, rank, problem, experts, 10.0);
    auto second = std::make_unique<VmmRank>(group + ".2", rank, rank, problem, experts, 10.0);
    if (rank % 2 == 1) first.swap(second);
    first.reset();
    second.reset();

    fabric::Bootstrap all(group, rank, num_ranks, VmmRank::kMeetingSeconds);
    auto third = std::make_unique<VmmRank>(group + ".3", rank, rank, problem, experts, 10.0);
    if (rank == 0) third.reset();  // gives up waiting for the others
    all.barrier();
    if (rank != 0) {
      cuda_backend::check(cudaMemset(third->heap().base(0), 0x11, 4096), "cudaMemset");
      cuda_backend::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    }
    third.reset();
    VmmRank fourth(group + ".4", rank, rank, problem, experts, 10.0);
    Batch batch = make_batch(problem, 40, static_cast<std::uint64_t>(rank));
    const std::string wrong = check_call(fourth, problem, experts, batch, 300);
    return wrong.empty() ? std::string("right") : wrong;
  });
  EXPECT_THAT(processes_.finish_all(), Each(std::string("right")));
}

TEST_F(VmmTest, ranks_that_build_different_layers_are_told) {
  start_all([=, num_ranks = num_ranks_, group = group_](int rank, const Processes::Say&) {
    Problem problem = problem_of(num_ranks, WireForm::automatic);
    if (rank == 1) problem.hidden *= 2;
    VmmRank end(group, rank, rank, problem, DenseExperts(problem, 3), 10.0);
    return std::string("made");
  });
  EXPECT_THAT(processes_.finish_all(), Each(AllOf(HasSubstr("FabricError: the heap of group"), HasSubstr("on rank 1"))));
}

TEST_F(VmmTest, INIT4_gpus_that_cannot_reach_each_other_are_told_to_all) {
  start_all([=, num_ranks = num_ranks_, group = group_](int rank, const Processes::Say&) {
    const Problem problem = problem_of(num_ranks, WireForm::automatic);
    const auto ask = [](int device, int peer) {
      return device == 1 && peer == 0 ? fabric::PeerLink::none : cuda_backend::ask_driver(device, peer);
    };
    auto meeting = std::make_unique<fabric::Bootstrap>(group, rank, num_ranks, VmmRank::kMeetingSeconds);
    const cuda_backend::VmmHeap heap(plan_geometry(problem, cuda_backend::engine_traits(problem)), rank,
                                     std::move(meeting), ask);
    return std::string("made");
  });
  EXPECT_THAT(processes_.finish_all(),
              Each(HasSubstr("FabricError: GPUs 0 and 1 (ranks 0 and 1) cannot reach each other's memory")));
}

TEST_F(VmmTest, a_rank_without_memory_ends_the_building_for_all) {
  start_all([=, num_ranks = num_ranks_, group = group_](int rank, const Processes::Say&) {
    const Problem problem = problem_of(num_ranks, WireForm::automatic);
    if (rank == 1) {
      // The end of the process frees it.
      for (std::size_t bytes = std::size_t{1} << 36; bytes >= std::size_t{1} << 16; bytes /= 2) {
        void* taken = nullptr;
        while (cudaMalloc(&taken, bytes) == cudaSuccess) {
        }
        cudaGetLastError();
      }
    }
    cuda_backend::VmmHeap heap(plan_geometry(problem, cuda_backend::engine_traits(problem)), rank,
                               std::make_unique<fabric::Bootstrap>(group, rank, num_ranks, VmmRank::kMeetingSeconds));
    return std::string("made");
  });
  EXPECT_THAT(processes_.finish_all(), Each(HasSubstr("rank 1 could not make its heap")));
}

}  // namespace
}  // namespace flashmoe::test
