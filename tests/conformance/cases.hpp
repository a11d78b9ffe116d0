// Failures that users of other MoE libraries reported, as typed suites over backends (see layer_suite.hpp):
// {rank,shape,repeat,precision}_cases.hpp. docs/cases.md says which report became which test, here or
// elsewhere. T tokens on a rank, E experts in all, K experts per token, R ranks.
// A Backend::World also has, for calls without a barrier between them: each_rank(work), forward(rank, batch,
// max_tokens, deadline_seconds, layer), plan(rank) and overhead_bytes(rank) of a rank's last call, calls_finished(rank);
// a constructor for several layers on one heap; and Options, whose variants() must not change any result.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "conformance/group.hpp"
#include "flashmoe/error.hpp"
#include "support/dice.hpp"
#include "support/sanitized.hpp"

namespace flashmoe::test {

template <class Backend>
class Cases : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = Backend::why_not(); !reason.empty()) GTEST_SKIP() << reason;
  }
};

inline Problem problem_of(int num_ranks, int num_experts, int top_k, std::int64_t max_tokens) {
  return {.num_ranks = num_ranks, .hidden = 64, .intermediate = 32, .num_experts = num_experts, .top_k = top_k,
          .max_tokens = max_tokens};
}

inline void sleep_up_to(Dice& dice, int most_us) {
  std::this_thread::sleep_for(std::chrono::microseconds(dice.between(0, most_us)));
}

/// Every rank's calls without a barrier between them; `tokens_of(call, rank)`. Compares each with the reference.
template <class Backend, class TokensOf>
void run_without_barrier(const Problem& problem, int num_calls, int most_sleep_us, const TokensOf& tokens_of) {
  const auto experts = std::make_shared<DenseExperts>(problem, 1);
  typename Backend::World world(problem, experts);
  world.each_rank([&](std::size_t rank) {
    Dice dice(rank);
    for (int call = 0; call < num_calls; ++call) {
      Batch batch = make_batch(problem, tokens_of(call, rank), static_cast<std::uint64_t>(call) * 8 + rank);
      sleep_up_to(dice, most_sleep_us);
      world.forward(rank, batch, problem.max_tokens);
      const auto wanted = reference::layer(problem, *experts, batch.x_view(), batch.routing());
      ASSERT_LE(error_in_bars(problem, batch, wanted), 1.0) << "call " << call;
    }
  });
  for (int rank = 0; rank < problem.num_ranks; ++rank) ASSERT_EQ(world.message(static_cast<std::size_t>(rank)), "");
}

}  // namespace flashmoe::test
