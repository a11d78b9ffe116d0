// Shapes that exercise the engines' tiles: several steps of k, several column tiles, ragged last tiles, partial
// m-blocks, every activation, biases and weights on the input.
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "device.hpp"
#include "support/cuda_world.hpp"

namespace flashmoe::test {
namespace {

/// Two calls of one problem, sampled tokens against the reference. `num_blocks`: of a rank; 0: as many as there are.
void expect_reference(const Problem& problem, const std::vector<std::int64_t>& tokens, int num_blocks = 0) {
  const auto experts = std::make_shared<DenseExperts>(problem, 3);
  CudaWorld world(problem, experts, {.num_blocks = num_blocks});
  for (std::uint64_t call = 0; call < 2; ++call) {
    std::vector<Batch> batches;
    std::vector<Batch*> pointers;
    for (std::size_t rank = 0; rank < tokens.size(); ++rank) {
      const Routing routing = call == 0 ? Routing::distinct : Routing::any;
      batches.push_back(make_batch(problem, tokens[rank], 10 * call + rank, routing));
    }
    for (Batch& batch : batches) pointers.push_back(&batch);
    world.call(pointers, problem.max_tokens);
    for (std::size_t rank = 0; rank < batches.size(); ++rank) {
      ASSERT_EQ(world.message(rank), "") << to_string(problem);
      std::vector<std::int64_t> sample;
      for (std::int64_t token = 0; token < tokens[rank]; token += 1 + tokens[rank] / 24) sample.push_back(token);
      const auto wanted =
          reference::layer(problem, *experts, batches[rank].x_view(), batches[rank].routing(), sample, 8);
      const std::vector<double> all = batches[rank].output(problem);
      std::vector<double> got;
      for (const std::int64_t token : sample) {
        got.insert(got.end(), all.begin() + token * problem.hidden, all.begin() + (token + 1) * problem.hidden);
      }
      EXPECT_LE(reference::relative_l2(got, wanted), 1.4 * tolerance(problem.dtype))
          << to_string(problem) << " call " << call << " rank " << rank;
      for (const double value : all) ASSERT_TRUE(std::isfinite(value)) << to_string(problem);
    }
  }
}

TEST(TileShapes, odd_sizes_of_real_models_match_the_reference) {
  FLASHMOE_REQUIRE_GPUS(1);
  for (const auto& [hidden, intermediate] :
       {std::pair{2880, 352}, {352, 2880}, {1408, 704}, {264, 520}, {8, 8}, {2048, 768}}) {
    for (const bool gated : {true, false}) {
      expect_reference({.num_ranks = 1, .hidden = hidden, .intermediate = intermediate, .num_experts = 4, .top_k = 2,
                        .max_tokens = 333, .activation = gated ? Activation::silu : Activation::relu, .gated = gated},
                       {333});
    }
  }
}

/// Down tasks of 16 tiles, 15 in an m-block's last, and, in the last two rounds of 40 blocks, of 8 and 7; in those of all, 8 and 7.
TEST(TileShapes, down_tasks_that_are_halved_at_the_end_match_the_reference) {
  FLASHMOE_REQUIRE_GPUS(1);
  for (const int num_ranks : {1, 2}) {
    const Problem problem{.num_ranks = num_ranks, .hidden = 3880, .intermediate = 72, .num_experts = 64 * num_ranks, .top_k = 8,
                          .max_tokens = 520, .wire_form = WireForm::counted, .result_form = ResultForm::per_route};
    if (!runs_on_hopper(problem)) GTEST_SKIP() << "engine hopper does not run here";
    const CallPlan plan = plan_call(problem, plan_geometry(problem, CudaWorld::traits(problem)), problem.max_tokens);
    ASSERT_EQ(plan.down_tiles, 16);
    ASSERT_EQ(plan.halved_down_tiles, 8);
    for (const int num_blocks : {40, 0}) {
      expect_reference(problem, std::vector<std::int64_t>(static_cast<std::size_t>(num_ranks), 520), num_blocks);
    }
  }
}

TEST(TileShapes, every_activation_with_biases_matches_the_reference) {
  FLASHMOE_REQUIRE_GPUS(1);
  for (const DType dtype : {DType::bf16, DType::fp16}) {
    for (const Activation activation : {Activation::silu, Activation::gelu_erf, Activation::gelu_tanh, Activation::relu,
                                        Activation::relu_squared, Activation::identity, Activation::swiglu_clamped}) {
      for (const bool gated : {true, false}) {
        if (!gated && activation == Activation::swiglu_clamped) continue;
        expect_reference({.num_ranks = 1, .hidden = 192, .intermediate = 328, .num_experts = 3, .top_k = 2,
                          .max_tokens = 200, .dtype = dtype, .activation = activation, .gated = gated, .up_bias = true,
                          .down_bias = true, .weight_on_input = activation == Activation::gelu_tanh},
                         {200});
      }
    }
  }
}

TEST(TileShapes, every_form_on_several_ranks_matches_the_reference) {
  FLASHMOE_REQUIRE_GPUS(1);
  struct Form {
    WireForm wire;
    ResultForm results;
  };
  for (const int num_ranks : {2, 4}) {
    for (const Form form : {Form{WireForm::counted, ResultForm::per_route},
                            {WireForm::counted, ResultForm::pre_reduced}, {WireForm::lined, ResultForm::per_route}}) {
      std::vector<std::int64_t> tokens;
      for (int rank = 0; rank < num_ranks; ++rank) tokens.push_back(rank == 1 ? 0 : 300 - 70 * rank);
      expect_reference({.num_ranks = num_ranks, .hidden = 720, .intermediate = 264, .num_experts = 4 * num_ranks,
                        .top_k = 4, .max_tokens = 300, .wire_form = form.wire, .result_form = form.results,
                        .wave_tokens = 128},
                       tokens);
    }
  }
}

/// per_route: more cells of a token than a helper has room for at once.
TEST(TileShapes, many_choices_a_token_match_the_reference) {
  FLASHMOE_REQUIRE_GPUS(1);
  for (const ResultForm results : {ResultForm::per_route, ResultForm::pre_reduced}) {
    for (const int hidden : {264, 4104}) {
      expect_reference({.num_ranks = 2, .hidden = hidden, .intermediate = 72, .num_experts = 40, .top_k = 32,
                        .max_tokens = 150, .wire_form = WireForm::counted, .result_form = results},
                       {150, 70});
    }
  }
}

/// Wide experts, few m-blocks: the last down tasks of these calls have one tile each.
TEST(TileShapes, calls_that_end_in_narrow_tasks_match_the_reference) {
  FLASHMOE_REQUIRE_GPUS(1);
  for (const ResultForm results : {ResultForm::per_route, ResultForm::pre_reduced}) {
    for (const std::int64_t tokens : {9, 50, 200}) {  // lined, decode tiles, prefill tiles with a ragged m-block
      Problem problem{.num_ranks = 2, .hidden = 584, .intermediate = 4104, .num_experts = 4, .top_k = 2,
                      .max_tokens = 200, .down_bias = true, .result_form = results};
      EXPECT_EQ(plan_call(problem, plan_geometry(problem, CudaWorld::traits(problem)), tokens).narrow_ends,
                cuda_backend::engine_of(plan_geometry(problem, CudaWorld::traits(problem))) == cuda_backend::Engine::hopper);
      expect_reference(problem, {tokens, tokens / 2});
    }
  }
}

}  // namespace
}  // namespace flashmoe::test
