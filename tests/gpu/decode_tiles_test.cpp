// Decode tiles of the Hopper engine give the bits that its prefill tiles give, whatever the number of rows: so it
// cannot be seen in a result how an expert's rows were cut, nor where the boundary lies.
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "cuda/hopper/tile_shape.hpp"
#include "device.hpp"
#include "flashmoe/error.hpp"
#include "support/cuda_world.hpp"

namespace flashmoe::test {
namespace {

using cuda_backend::hopper::kDecodeRows;

/// Output of one call in which every expert gets all tokens.
std::vector<char> run(const Problem& problem, const std::shared_ptr<DenseExperts>& experts, std::int64_t tokens,
                      int decode_rows) {
  CudaWorld world(problem, experts, {.deadline_seconds = 5.0, .decode_rows = decode_rows});
  Batch batch = make_batch(problem, tokens, static_cast<std::uint64_t>(tokens));
  world.poison();
  world.call({&batch}, tokens);
  EXPECT_EQ(world.message(0), "") << to_string(problem);
  return batch.y;
}

bool runs_on_hopper(const Problem& problem) {
  return cuda_backend::engine_of(plan_geometry(problem, CudaWorld::traits(problem))) == cuda_backend::Engine::hopper;
}

TEST(DecodeTiles, give_the_bits_of_prefill_tiles) {
  FLASHMOE_REQUIRE_GPUS(1);
  struct Form {
    WireForm wire;
    ResultForm results;
  };
  for (const DType dtype : {DType::bf16, DType::fp16}) {
    for (const Form form : {Form{WireForm::counted, ResultForm::per_route},
                            {WireForm::counted, ResultForm::pre_reduced},
                            {WireForm::lined, ResultForm::per_route}}) {
      for (const bool gated : {true, false}) {
        const Problem problem{.num_ranks = 1,
                              .hidden = 584,  // two products of two down tiles, one of a ragged one
                              .intermediate = 360,
                              .num_experts = 2,
                              .top_k = 2,
                              .max_tokens = 64,
                              .dtype = dtype,
                              .activation = Activation::gelu_tanh,
                              .gated = gated,
                              .up_bias = true,
                              .down_bias = true,
                              .weight_on_input = form.results == ResultForm::per_route,
                              .wire_form = form.wire,
                              .result_form = form.results};
        if (!runs_on_hopper(problem)) GTEST_SKIP() << "engine hopper does not run here";
        const auto experts = std::make_shared<DenseExperts>(problem, 7);
        for (const std::int64_t tokens : {1, 7, 8, 9, 16, 17, 32, 33, 50, 64}) {
          EXPECT_EQ(run(problem, experts, tokens, kDecodeRows), run(problem, experts, tokens, 0))
              << to_string(problem) << " tokens " << tokens;
        }
      }
    }
  }
}

TEST(DecodeTiles, a_boundary_out_of_range_is_refused) {
  FLASHMOE_REQUIRE_GPUS(1);
  const Problem problem{
      .num_ranks = 1, .hidden = 64, .intermediate = 64, .num_experts = 1, .top_k = 1, .max_tokens = 8};
  const auto experts = std::make_shared<DenseExperts>(problem, 7);
  for (const int rows : {-1, kDecodeRows + 1}) {
    try {
      const CudaWorld world(problem, experts, {.decode_rows = rows});
      ADD_FAILURE() << "decode_rows " << rows << " was taken";
    } catch (const InvalidArgument& error) {
      EXPECT_EQ(error.what(),
                fmt::format("decode_rows must be in 0..{}, got {}: rows of an expert that a decode tile holds",
                            kDecodeRows, rows));
    }
  }
}

}  // namespace
}  // namespace flashmoe::test
