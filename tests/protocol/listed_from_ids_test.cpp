// Calls of several ranks whose lists are made from ids (Call::listed_from_ids).
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "flashmoe/error.hpp"
#include "support/batch.hpp"
#include "support/cpu_world.hpp"

namespace flashmoe::test {
namespace {

using testing::HasSubstr;

constexpr int kRanks = 3;

Problem problem() {
  return {.num_ranks = kRanks, .hidden = 16, .intermediate = 8, .num_experts = 6, .top_k = 2, .max_tokens = 40,
          .wire_form = WireForm::counted};
}

TEST(ListedFromIds, sends_as_many_bytes_of_rows_as_planned_calls_and_gives_the_same_bits) {
  const auto experts = std::make_shared<DenseExperts>(problem(), 1);
  EngineTraits planned = cpu::engine_traits();
  planned.listed_routes = 0;
  ASSERT_GE(plan_geometry(problem(), cpu::engine_traits()).listed_tokens, 40);
  for (const Routing routing : {Routing::any, Routing::masked, Routing::all_to_one}) {
    CpuWorld with_ids(problem(), experts);
    CpuWorld with_plans(problem(), experts, {}, planned);
    const std::vector<std::int64_t> tokens{40, 0, 13};
    std::vector<Batch> listed;
    std::vector<Batch> other;
    for (std::size_t rank = 0; rank < kRanks; ++rank) {
      listed.push_back(make_batch(problem(), tokens[rank], rank, routing));
      other.push_back(listed.back());
    }
    with_ids.call({&listed[0], &listed[1], &listed[2]}, 40);
    with_plans.call({&other[0], &other[1], &other[2]}, 40);
    for (std::size_t rank = 0; rank < kRanks; ++rank) {
      EXPECT_EQ(with_ids.message(rank), "");
      EXPECT_EQ(listed[rank].y, other[rank].y);
      EXPECT_EQ(with_ids.payload_bytes(rank), with_plans.payload_bytes(rank));
    }
  }
}

/// Ids are sent before all have been checked: a rank that needs nothing of the wrong one may return. It learns of it next.
TEST(ListedFromIds, of_a_wrong_id_its_caller_is_told_at_once_and_others_at_the_latest_in_their_next_call) {
  const auto experts = std::make_shared<DenseExperts>(problem(), 1);
  for (const std::int64_t where : {0, 17, 39}) {
    CpuWorld world(problem(), experts, {.roster = {.num_dispatchers = 3, .num_processors = 2}});
    std::vector<Batch> batches{make_batch(problem(), 40, 1), make_batch(problem(), 40, 2), make_batch(problem(), 0, 3)};
    batches[1].topk_ids[static_cast<std::size_t>(2 * where + 1)] = 6;
    world.call({&batches[0], &batches[1], &batches[2]}, 40, 5.0);
    const auto record = fmt::format("topk_ids[{}][1] of rank 1 is 6", where);
    EXPECT_TRUE(world.threw<InvalidArgument>(1));
    EXPECT_THAT(world.message(1), HasSubstr(record));
    for (const std::size_t rank : {0u, 2u}) {
      EXPECT_THAT(world.message(rank), testing::AnyOf("", HasSubstr(record)));
    }
    batches[1] = make_batch(problem(), 40, 2);
    world.call({&batches[0], &batches[1], &batches[2]}, 40, 5.0);
    for (std::size_t rank = 0; rank < kRanks; ++rank) EXPECT_THAT(world.message(rank), HasSubstr(record)) << rank;
  }
}

}  // namespace
}  // namespace flashmoe::test
