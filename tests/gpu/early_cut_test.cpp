// M-blocks that the Hopper engine cuts before rows land (src/cuda/hopper/early_cut.cuh) give the bits that the scheduler's give, in
// both wire forms, for one rank and for several, for any number of m-blocks up to the intermediate ring's places and past it; and a
// rank that gives up while rows are on their way says why.
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "device.hpp"
#include "flashmoe/error.hpp"
#include "support/cuda_world.hpp"

namespace flashmoe::test {
namespace {

struct Shape {
  int num_ranks;
  int num_experts;
  int top_k;
  std::int64_t num_tokens;
  Routing routing = Routing::any;
  WireForm wire_form = WireForm::counted;
  bool weight_on_input = false;
  bool gated = true;
  int intermediate = 160;
};

Problem problem_of(const Shape& shape) {
  return {.num_ranks = shape.num_ranks, .hidden = 192, .intermediate = shape.intermediate, .num_experts = shape.num_experts,
          .top_k = shape.top_k, .max_tokens = shape.num_tokens, .dtype = DType::bf16, .gated = shape.gated,
          .weight_on_input = shape.weight_on_input, .wire_form = shape.wire_form, .result_form = ResultForm::per_route};
}

/// Every rank's batch of every call; ranks have different numbers of tokens, and sometimes none.
std::vector<Batch> run(const Shape& shape, const std::shared_ptr<DenseExperts>& experts, bool early_cut) {
  const Problem problem = problem_of(shape);
  const auto ranks = static_cast<std::size_t>(problem.num_ranks);
  CudaWorld world(problem, experts, {.deadline_seconds = 5.0, .early_cut = early_cut});
  const std::int64_t most = problem.max_tokens;
  const std::int64_t tokens[] = {most, most / 3, 1, most, 0, most - 1};
  constexpr std::size_t kCalls = 5;
  std::vector<Batch> batches;
  batches.reserve(kCalls * ranks);
  for (std::size_t call = 0; call < kCalls; ++call) {
    std::vector<Batch*> of_call;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      batches.push_back(make_batch(problem, tokens[(call + rank) % std::size(tokens)], batches.size(), shape.routing));
      of_call.push_back(&batches.back());
    }
    world.poison();
    world.call(of_call, most);
    for (std::size_t rank = 0; rank < ranks; ++rank) EXPECT_EQ(world.message(rank), "") << to_string(problem);
  }
  return batches;
}

void expect_the_bits_of_the_schedulers_m_blocks(const std::vector<Shape>& shapes) {
  for (const Shape& shape : shapes) {
    SCOPED_TRACE(fmt::format("{} ranks, {} experts, top_k {}, {} tokens", shape.num_ranks, shape.num_experts, shape.top_k,
                             shape.num_tokens));
    const Problem problem = problem_of(shape);
    const auto experts = std::make_shared<DenseExperts>(problem, 3);
    const std::vector<Batch> early = run(shape, experts, true);
    const std::vector<Batch> late = run(shape, experts, false);
    for (std::size_t i = 0; i < early.size(); ++i) {
      EXPECT_EQ(early[i].y, late[i].y) << "batch " << i;
      Batch batch = early[i];
      const auto wanted = reference::layer(problem, *experts, batch.x_view(), batch.routing());
      EXPECT_LE(error_in_bars(problem, batch, wanted), 1.0) << "batch " << i;
    }
  }
}

constexpr auto kLined = WireForm::lined;

TEST(EarlyCut, gives_the_bits_of_the_schedulers_m_blocks) {
  FLASHMOE_REQUIRE_GPUS(1);
  if (!runs_on_hopper(problem_of({1, 9, 2, 100}))) GTEST_SKIP() << "engine portable has the scheduler's m-blocks alone";
  expect_the_bits_of_the_schedulers_m_blocks({
      {1, 9, 2, 1},
      {1, 128, 8, 8, Routing::distinct, kLined},
      {1, 128, 8, 64, Routing::distinct},
      {1, 300, 5, 200, Routing::masked, WireForm::counted, true},  // more experts than threads
      {1, 4, 1, 2000, Routing::all_to_one},                        // a group of m-blocks
      {1, 4, 1, 8192, Routing::all_to_one},                        // more than a group: left to the scheduler
      {1, 700, 8, 1024, Routing::distinct},                        // more than places, maybe
      {2, 128, 8, 16, Routing::any, kLined},
      {2, 128, 8, 1024, Routing::distinct},
      {2, 6, 2, 900, Routing::any, WireForm::counted, true, false},
      {2, 8, 2, 300, Routing::last_rank},
      {4, 36, 11, 90, Routing::last_rank},
      {8, 64, 4, 333, Routing::any},
      {8, 64, 4, 7, Routing::any, kLined},
      {2, 16, 2, 33, Routing::any, WireForm::counted, false, true, 4096},  // long down tasks
  });
}

TEST(EarlyCut, gives_them_in_small_layers) {
  FLASHMOE_REQUIRE_GPUS(1);
  if (!runs_on_hopper(problem_of({1, 9, 2, 100}))) GTEST_SKIP() << "engine portable has the scheduler's m-blocks alone";
  expect_the_bits_of_the_schedulers_m_blocks({
      {1, 9, 2, 16, Routing::any, kLined},
      {2, 8, 2, 40, Routing::all_to_one, kLined, true},
      {3, 6, 2, 50, Routing::masked},
  });
}

}  // namespace
}  // namespace flashmoe::test
