// Processes that have chosen one GPU, as those that never chose do. One GPU is enough.
// The test itself never calls CUDA: a process that has cannot be forked any more.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "count_gpus.hpp"
#include "flashmoe/group.hpp"
#include "support/processes.hpp"

namespace flashmoe::test {
namespace {

using ::testing::Each;
using ::testing::StartsWith;

TEST(SharedGpu, GROUP4_processes_that_never_chose_their_gpu_are_told_on_joining) {
  if (count_gpus() == 0) GTEST_SKIP() << "needs a GPU, this machine has none";
  const std::string group_id = fmt::format("{}-never-chose", getpid());
  Processes processes;
  for (int rank = 0; rank < 3; ++rank) {
    processes.start([=](const Processes::Say&) {
      const Group group = Group::join({.group_id = group_id, .rank = rank, .num_ranks = 3},
                                      {.backend = BackendKind::cuda, .meeting_seconds = 20});
      return std::string("joined");
    });
  }
  EXPECT_THAT(processes.finish_all(),
              Each(StartsWith(fmt::format("FabricError: ranks 0, 1 and 2 of group '{}' have chosen one "
                                          "GPU (device 0 of rank 0)",
                                          group_id))));
}

}  // namespace
}  // namespace flashmoe::test
