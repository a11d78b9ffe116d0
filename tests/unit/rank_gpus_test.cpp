// Which GPUs ranks may have, without any.
#include "fabric/rank_gpus.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "flashmoe/error.hpp"
#include "support/processes.hpp"

namespace flashmoe::test {
namespace {

using fabric::PeerLink;
using fabric::PeerLinks;
using fabric::RankGpu;
using ::testing::Each;
using ::testing::StartsWith;

/// What the choice of GPUs ends with, one letter a rank; empty where it is accepted.
std::string refusal_of(const std::string& gpus, const std::vector<int>& devices) {
  std::vector<RankGpu> chosen;
  for (std::size_t rank = 0; rank < gpus.size(); ++rank) {
    chosen.push_back({.uuid = {gpus[rank]}, .device = devices[rank]});
  }
  try {
    fabric::require_own_gpus("g", chosen);
  } catch (const FabricError& error) {
    return error.what();
  }
  return "";
}

TEST(RankGpus, every_rank_may_have_a_gpu_of_its_own_whatever_it_calls_it) {
  EXPECT_EQ(refusal_of("a", {0}), "");
  EXPECT_EQ(refusal_of("abcd", {0, 1, 2, 3}), "");
  EXPECT_EQ(refusal_of("abcd", {0, 0, 0, 0}), "");  // each sees its own alone
}

TEST(RankGpus, GROUP4_ranks_that_chose_one_gpu_are_named) {
  EXPECT_EQ(refusal_of("aa", {0, 0}),
            "ranks 0 and 1 of group 'g' have chosen one GPU (device 0 of rank 0), where kernels of two processes do not "
            "run at once: give every process another device, such as its local rank (in torch by torch.cuda.set_device), "
            "or run the ranks as threads of one process");
  EXPECT_THAT(refusal_of("aaaa", {0, 0, 0, 0}), StartsWith("ranks 0, 1, 2 and 3 of group 'g'"));
  EXPECT_THAT(refusal_of("abcb", {0, 3, 2, 0}),
              StartsWith("ranks 1 and 3 of group 'g' have chosen one GPU (device 3 of rank 1)"));
}

/// From one GPU to another.
using Link = std::pair<std::pair<int, int>, PeerLink>;

/// What GPUs 0, 1, ... of one process are told, all links full but for some; empty where they may share heaps.
std::string refusal_of_links(int num_gpus, const std::vector<Link>& changed) {
  std::vector<int> devices;
  for (int gpu = 0; gpu < num_gpus; ++gpu) devices.push_back(gpu);
  const auto ask = [&](int device, int peer) {
    for (const auto& [gpus, link] : changed) {
      if (gpus == std::pair(device, peer)) return link;
    }
    return PeerLink::full;
  };
  std::vector<PeerLinks> links;
  for (const int device : devices) links.push_back(fabric::ask_peer_links(device, devices, ask));
  try {
    fabric::require_peer_links(devices, links);
  } catch (const FabricError& error) {
    return error.what();
  }
  return "";
}

TEST(PeerLinks, gpus_that_reach_each_other_may_share_heaps) {
  EXPECT_EQ(refusal_of_links(1, {}), "");
  EXPECT_EQ(refusal_of_links(8, {}), "");
}

TEST(PeerLinks, INIT4_gpus_that_cannot_reach_each_other_are_named) {
  const std::string rest = " cannot reach each other's memory: use GPUs joined by NVLink (nvidia-smi topo -m shows which)";
  EXPECT_EQ(refusal_of_links(2, {{{0, 1}, PeerLink::none}, {{1, 0}, PeerLink::none}}),
            "GPUs 0 and 1 (ranks 0 and 1)" + rest);
  EXPECT_EQ(refusal_of_links(4, {{{3, 1}, PeerLink::none}}), "GPUs 1 and 3 (ranks 1 and 3)" + rest);
}

TEST(PeerLinks, INIT4_all_pairs_are_listed_as_far_as_a_sentence_goes) {
  EXPECT_THAT(refusal_of_links(4, {{{0, 2}, PeerLink::none}, {{0, 3}, PeerLink::none}, {{1, 2}, PeerLink::none}}),
              StartsWith("GPUs 0 and 2 (ranks 0 and 2), GPUs 0 and 3 (ranks 0 and 3) and "
                         "GPUs 1 and 2 (ranks 1 and 2) cannot reach"));
  std::vector<Link> none;
  for (int device = 0; device < 8; ++device) {
    for (int peer = 0; peer < 8; ++peer) none.push_back({{device, peer}, PeerLink::none});
  }
  EXPECT_THAT(refusal_of_links(8, none), ::testing::HasSubstr("GPUs 1 and 2 (ranks 1 and 2) and 20 more pairs cannot"));
}

TEST(PeerLinks, INIT4_reach_without_atomics_is_not_enough) {
  EXPECT_EQ(refusal_of_links(3, {{{0, 2}, PeerLink::without_atomics}}),
            "GPUs 0 and 2 (ranks 0 and 2) reach each other's memory, but cannot add to it atomically: use GPUs joined "
            "by NVLink (nvidia-smi topo -m shows which)");
  EXPECT_THAT(refusal_of_links(3, {{{0, 1}, PeerLink::without_atomics}, {{1, 2}, PeerLink::none}}),
              StartsWith("GPUs 1 and 2 (ranks 1 and 2) cannot reach"));
}

TEST(PeerLinks, INIT4_ranks_that_share_a_gpu_or_do_not_see_one_need_no_answer) {
  const std::vector<int> peers = {3, 3, -1, 5};
  std::vector<int> asked;
  fabric::ask_peer_links(3, peers, [&](int device, int peer) {
    EXPECT_EQ(device, 3);
    asked.push_back(peer);
    return PeerLink::full;
  });
  EXPECT_THAT(asked, ::testing::ElementsAre(5));
}

TEST(PeerLinks, INIT4_what_one_process_cannot_reach_is_told_to_all) {
  constexpr int kNumRanks = 3;
  const std::string group_id = fmt::format("{}-links", getpid());
  Processes processes;
  for (int rank = 0; rank < kNumRanks; ++rank) {
    processes.start([=](const Processes::Say&) {
      fabric::Bootstrap meeting(group_id, rank, kNumRanks, 30);
      const std::vector<int> devices = {4, 0, 7};  // each by its own numbering
      const std::vector<int> peers = {4, 5, 7};    // by that of rank 0
      const std::vector<int> hidden = {-1, -1, -1};
      fabric::compare_peer_links(meeting, devices, rank == 0 ? peers : hidden,
                                 [](int, int peer) { return peer == 5 ? PeerLink::none : PeerLink::full; });
      return std::string("shared");
    });
  }
  EXPECT_THAT(processes.finish_all(), Each(StartsWith("FabricError: GPUs 4 and 0 (ranks 0 and 1) cannot reach")));
}

}  // namespace
}  // namespace flashmoe::test
