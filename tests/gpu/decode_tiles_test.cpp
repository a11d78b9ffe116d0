// Decode tiles of the Hopper engine give the bits that its prefill tiles give, whatever the number of rows: so it
// cannot be seen in a result how an expert's rows were cut, nor where the boundary lies.
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "cuda/hopper/tile_shape.hpp"
#include "device.hpp"
#include "flashmoe/error.hpp"
#include "support/cuda_world.hpp"
#include "support/forms.hpp"

namespace flashmoe::test {
namespace {

using cuda_backend::hopper::kDecodeRows;

constexpr int kEvenSteps = 360;  // of k, in steps of 64
constexpr int kOddSteps = 312;
constexpr int kEmptyHalf = 280;  ///< the last up tile's second half has no columns
/// Too few for a call's tasks to be narrow, fewer than it has up tasks; 0: enough for all of them to be.
constexpr int kFewBlocks = 3;

/// Two experts, each of which gets all tokens.
Problem two_experts(DType dtype, const Form& form, bool gated, std::int64_t max_tokens, int intermediate = kEvenSteps) {
  return {.num_ranks = 1,
          .hidden = 568,  // two products of two down tiles, one of a ragged one; an odd number of steps of k
          .intermediate = intermediate,
          .num_experts = 2,
          .top_k = 2,
          .max_tokens = max_tokens,
          .dtype = dtype,
          .activation = Activation::gelu_tanh,
          .gated = gated,
          .up_bias = true,
          .down_bias = true,
          .weight_on_input = form.results == ResultForm::per_route,
          .wire_form = form.wire,
          .result_form = form.results};
}

/// Output of one call.
std::vector<char> run(const Problem& problem, const std::shared_ptr<DenseExperts>& experts, std::int64_t tokens,
                      int decode_rows, int num_blocks) {
  CudaWorld world(problem, experts, {.num_blocks = num_blocks, .deadline_seconds = 5.0, .decode_rows = decode_rows});
  Batch batch = make_batch(problem, tokens, static_cast<std::uint64_t>(tokens));
  world.poison();
  world.call({&batch}, tokens);
  EXPECT_EQ(world.message(0), "") << to_string(problem);
  return batch.y;
}

TEST(DecodeTiles, give_the_bits_of_prefill_tiles) {
  FLASHMOE_REQUIRE_GPUS(1);
  for (const DType dtype : {DType::bf16, DType::fp16}) {
    for (const Form& form : kForms) {
      for (const bool gated : {true, false}) {
        // Deep tiles take two steps at once; of kOddSteps the last up tile has no second. With all blocks up tasks have half a
        // tile.
        for (const auto& [num_blocks, intermediate] :
             {std::pair(kFewBlocks, kEvenSteps), {kFewBlocks, kOddSteps}, {0, kOddSteps}, {0, kEmptyHalf}}) {
          const Problem problem = two_experts(dtype, form, gated, kDecodeRows, intermediate);
          if (!runs_on_hopper(problem)) GTEST_SKIP() << "engine hopper does not run here";
          const auto experts = std::make_shared<DenseExperts>(problem, 7);
          for (const std::int64_t tokens : {1, 2, 4, 5, 7, 8, 9, 16, 17, 32, 33, 50, 64, 65, 72, 73, 80, 96}) {
            EXPECT_EQ(run(problem, experts, tokens, kDecodeRows, num_blocks), run(problem, experts, tokens, 0, kFewBlocks))
                << to_string(problem) << " tokens " << tokens;
          }
        }
      }
    }
  }
}

/// Tasks of eight and of seven down tiles, of ten and of nine: products of four, two and one. Experts have one to kQuadRows rows,
/// and more.
TEST(DecodeTiles, four_at_once_give_the_bits_of_prefill_tiles) {
  FLASHMOE_REQUIRE_GPUS(1);
  for (const auto& [hidden, tiles, dtype] : {std::tuple(1864, 8, DType::bf16), {2360, 10, DType::fp16}}) {
    const Problem problem{.num_ranks = 1, .hidden = hidden, .intermediate = 136, .num_experts = 128, .top_k = 8,
                          .max_tokens = 32, .dtype = dtype, .down_bias = true, .wire_form = WireForm::lined};
    if (!runs_on_hopper(problem)) GTEST_SKIP() << "engine hopper does not run here";
    ASSERT_EQ(plan_call(problem, plan_geometry(problem, CudaWorld::traits(problem)), 32).down_tiles, tiles);
    const auto experts = std::make_shared<DenseExperts>(problem, 7);
    for (const std::int64_t tokens : {16, 32}) {
      Batch batch = make_batch(problem, tokens, 5);
      for (std::int64_t token = 0; token < tokens; ++token) {  // expert e has the first e + 1 tokens more
        for (int choice = 0; choice < problem.top_k; ++choice) {
          if (token <= choice) batch.topk_ids[static_cast<std::size_t>(token * problem.top_k + choice)] = choice;
        }
        batch.topk_ids[static_cast<std::size_t>(token * problem.top_k)] = 100;  // and one has all
      }
      std::vector<std::vector<char>> outputs;
      for (const int decode_rows : {kDecodeRows, 0}) {
        CudaWorld world(problem, experts, {.deadline_seconds = 5.0, .decode_rows = decode_rows});
        batch.poison();
        world.poison();
        world.call({&batch}, 32);
        EXPECT_EQ(world.message(0), "");
        outputs.push_back(batch.y);
      }
      EXPECT_EQ(outputs[0], outputs[1]) << to_string(problem) << " tokens " << tokens;
      const auto wanted = reference::layer(problem, *experts, batch.x_view(), batch.routing());
      EXPECT_LE(error_in_bars(problem, batch, wanted), 1.0);
    }
  }
}

/// Some tokens of a batch.
Batch part_of(const Problem& problem, const Batch& batch, std::int64_t first, std::int64_t count) {
  const auto some = [&](const auto& values, std::size_t of_token) {
    const auto begin = values.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(first) * of_token);
    return std::vector(begin, begin + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(count) * of_token));
  };
  const auto row_bytes = static_cast<std::size_t>(problem.hidden) * dtype_bytes(problem.dtype);
  const auto routes = static_cast<std::size_t>(problem.top_k);
  return {.num_tokens = count,
          .x = some(batch.x, row_bytes),
          .y = std::vector<char>(static_cast<std::size_t>(count) * row_bytes),
          .topk_ids = some(batch.topk_ids, routes),
          .topk_weights = some(batch.topk_weights, routes)};
}

/// 129 to 144 rows are one m-block, 257 to 272 two; the same tokens in calls of 100, of prefill tiles, and the rest.
TEST(DecodeTiles, of_an_expert_s_last_rows_and_those_before_give_the_bits_of_both_alone) {
  FLASHMOE_REQUIRE_GPUS(1);
  for (const DType dtype : {DType::bf16, DType::fp16}) {
    for (const Form& form : kForms) {
      for (const bool gated : {true, false}) {
        const Problem problem = two_experts(dtype, form, gated, 273);
        if (!runs_on_hopper(problem)) GTEST_SKIP() << "engine hopper does not run here";
        CudaWorld world(problem, std::make_shared<DenseExperts>(problem, 7),
                        {.num_blocks = kFewBlocks, .deadline_seconds = 5.0});
        const Batch all = make_batch(problem, problem.max_tokens, 3);
        const auto output = [&](std::int64_t first, std::int64_t count) {
          Batch batch = part_of(problem, all, first, count);
          world.poison();
          world.call({&batch}, count);
          EXPECT_EQ(world.message(0), "") << to_string(problem);
          return batch.y;
        };
        for (const std::int64_t tokens : {128, 129, 137, 144, 145, 257, 272, 273}) {
          std::vector<char> in_parts;
          for (std::int64_t first = 0; first < tokens; first += 100) {
            const std::vector<char> part = output(first, std::min<std::int64_t>(tokens - first, 100));
            in_parts.insert(in_parts.end(), part.begin(), part.end());
          }
          EXPECT_EQ(output(0, tokens), in_parts) << to_string(problem) << " tokens " << tokens;
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
