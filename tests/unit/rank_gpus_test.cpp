// Which GPUs ranks may have, without any.
#include "fabric/rank_gpus.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "flashmoe/error.hpp"

namespace flashmoe::test {
namespace {

using fabric::RankGpu;

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
  EXPECT_THAT(refusal_of("aaaa", {0, 0, 0, 0}), ::testing::StartsWith("ranks 0, 1, 2 and 3 of group 'g'"));
  EXPECT_THAT(refusal_of("abcb", {0, 3, 2, 0}),
              ::testing::StartsWith("ranks 1 and 3 of group 'g' have chosen one GPU (device 3 of rank 1)"));
}

}  // namespace
}  // namespace flashmoe::test
