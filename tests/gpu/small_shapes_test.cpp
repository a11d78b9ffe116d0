// Every form and dtype on shapes small enough for compute-sanitizer: one rank, and two that share the GPU.
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "device.hpp"
#include "support/cuda_world.hpp"

namespace flashmoe::test {
namespace {

struct Shape {
  WireForm wire;
  ResultForm results;
  DType dtype;
  int num_ranks;
};

class SmallShapes : public ::testing::TestWithParam<Shape> {};

/// A few rows of many experts in waves; in pairs, several m-blocks of one expert a rank, of two up and three down tiles.
Problem problem_of(const Shape& shape) {
  if (CudaWorld::in_pairs()) {
    return {.num_ranks = shape.num_ranks, .hidden = 264, .intermediate = 136, .num_experts = shape.num_ranks, .top_k = 1,
            .max_tokens = 400, .dtype = shape.dtype, .wire_form = shape.wire, .result_form = shape.results};
  }
  return {.num_ranks = shape.num_ranks, .hidden = 72, .intermediate = 40, .num_experts = 6, .top_k = 2, .max_tokens = 90,
          .dtype = shape.dtype, .wire_form = shape.wire, .result_form = shape.results, .wave_tokens = 32};
}

TEST_P(SmallShapes, match_the_reference) {
  FLASHMOE_REQUIRE_GPUS(1);
  const Shape& shape = GetParam();
  const Problem problem = problem_of(shape);
  const auto experts = std::make_shared<DenseExperts>(problem, 1);
  CudaWorld world(problem, experts, {.num_blocks = 4, .deadline_seconds = 30.0}, 1);
  for (std::uint64_t call = 0; call < 2; ++call) {
    // Three waves; one, which a rank that is alone lists at once.
    std::vector<std::int64_t> tokens{call == 0 ? problem.max_tokens : 20, CudaWorld::in_pairs() ? 380 : 33};
    tokens.resize(static_cast<std::size_t>(shape.num_ranks));
    std::vector<Batch> batches = make_batches(problem, tokens, call, Routing::any);
    std::vector<Batch*> pointers;
    for (Batch& batch : batches) pointers.push_back(&batch);
    world.poison();
    world.call(pointers, problem.max_tokens);
    for (std::size_t rank = 0; rank < batches.size(); ++rank) {
      ASSERT_EQ(world.message(rank), "");
      const auto wanted = reference::layer(problem, *experts, batches[rank].x_view(), batches[rank].routing());
      EXPECT_LE(error_in_bars(problem, batches[rank], wanted), 1.0);
      // Rows of other ranks may land so slowly that every m-block is cut alone.
      if (CudaWorld::in_pairs() && shape.num_ranks == 1 && call == 0 && runs_on_hopper(problem)) {
        EXPECT_GT(world.shared_tasks(rank), 0);
      }
    }
  }
}

std::vector<Shape> all_shapes() {
  std::vector<Shape> shapes;
  for (const int num_ranks : {1, 2}) {
    for (const DType dtype : {DType::bf16, DType::fp16, DType::tf32, DType::fp64}) {
      shapes.push_back({WireForm::counted, ResultForm::per_route, dtype, num_ranks});
      shapes.push_back({WireForm::counted, ResultForm::pre_reduced, dtype, num_ranks});
      shapes.push_back({WireForm::lined, ResultForm::per_route, dtype, num_ranks});
    }
  }
  return shapes;
}

INSTANTIATE_TEST_SUITE_P(All, SmallShapes, ::testing::ValuesIn(all_shapes()), [](const auto& info) {
  return fmt::format("{}_{}_{}_{}", to_string(info.param.wire), to_string(info.param.results),
                     to_string(info.param.dtype), info.param.num_ranks);
});

}  // namespace
}  // namespace flashmoe::test
