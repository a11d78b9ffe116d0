// GPUs that cannot reach each other, by what a driver might say: they are refused before one is touched, so none is
// needed here.
#include "cuda/peer_access.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cpu/layer.hpp"
#include "cuda/local_heap.hpp"
#include "flashmoe/error.hpp"
#include "planner/plan.hpp"

namespace flashmoe::test {
namespace {

using fabric::PeerLink;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(PeerAccess, INIT4_ranks_of_one_process_whose_gpus_cannot_reach_each_other_are_refused) {
  const Problem problem{
      .num_ranks = 3, .hidden = 64, .intermediate = 16, .num_experts = 6, .top_k = 2, .max_tokens = 9};
  const Geometry geometry = plan_geometry(problem, cpu::engine_traits());
  const auto refuses = [&](PeerLink link, const char* message) {
    const auto ask = [=](int device, int peer) { return device + peer == 1 ? link : PeerLink::full; };
    EXPECT_THAT([&] { cuda_backend::LocalHeap(geometry, {0, 1, 2}, ask); },
                ThrowsMessage<FabricError>(HasSubstr(message)));
  };
  refuses(PeerLink::none, "GPUs 0 and 1 (ranks 0 and 1) cannot reach each other's memory: use GPUs joined by NVLink");
  refuses(PeerLink::without_atomics, "GPUs 0 and 1 (ranks 0 and 1) reach each other's memory, but cannot add to it");
}

}  // namespace
}  // namespace flashmoe::test
