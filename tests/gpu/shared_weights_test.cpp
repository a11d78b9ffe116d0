// Blocks that take tasks in pairs and share weights give the bits that blocks alone give: for odd numbers of m-blocks, tiles and
// steps of k, for last m-blocks of few rows and of more than a full one, in calls of very different sizes.
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "cuda/hopper/tile_shape.hpp"
#include "device.hpp"
#include "support/cuda_world.hpp"
#include "support/forms.hpp"

namespace flashmoe::test {
namespace {

enum class InPairs { never, planned, always };

/// Worlds made while it lives have their blocks in pairs so.
class Pairs {
 public:
  explicit Pairs(InPairs in_pairs) : before_(CudaWorld::pairs_wanted()) {
    setenv("FLASHMOE_PAIRS", in_pairs == InPairs::always ? "1" : in_pairs == InPairs::never ? "0" : "", 1);
  }
  ~Pairs() { setenv("FLASHMOE_PAIRS", before_.c_str(), 1); }
  Pairs(const Pairs&) = delete;
  Pairs& operator=(const Pairs&) = delete;

 private:
  std::string before_;
};

/// Two experts a rank; every token of a rank goes to two of them.
Problem few_experts(int num_ranks, DType dtype, const Form& form, int hidden, int intermediate, std::int64_t max_tokens) {
  return {.num_ranks = num_ranks,
          .hidden = hidden,
          .intermediate = intermediate,
          .num_experts = 2 * num_ranks,
          .top_k = 2,
          .max_tokens = max_tokens,
          .dtype = dtype,
          .up_bias = true,
          .weight_on_input = form.results == ResultForm::per_route,
          .wire_form = form.wire,
          .result_form = form.results};
}

/// Outputs of all ranks, of one call after another in one world.
std::vector<std::vector<char>> run(const Problem& problem, const std::shared_ptr<DenseExperts>& experts, InPairs in_pairs,
                                   int num_blocks, const std::vector<std::int64_t>& calls) {
  const Pairs pairs(in_pairs);
  CudaWorld world(problem, experts, {.num_blocks = num_blocks, .deadline_seconds = 5.0});
  std::vector<std::vector<char>> outputs;
  std::uint64_t shared_tasks = 0;
  for (const std::int64_t tokens : calls) {
    std::vector<Batch> batches;
    std::vector<Batch*> pointers;
    for (int rank = 0; rank < problem.num_ranks; ++rank) {
      batches.push_back(make_batch(problem, rank == 2 ? 0 : tokens, static_cast<std::uint64_t>(8 * tokens + rank)));
    }
    for (Batch& batch : batches) pointers.push_back(&batch);
    const bool many_rows = tokens >= cuda_backend::hopper::kPairRows;  // an expert has as many as a rank has tokens
    EXPECT_EQ(world.plan_of(tokens).tickets_at_once,
              in_pairs == InPairs::always || (in_pairs == InPairs::planned && many_rows) ? 2 : 1)
        << to_string(problem) << " blocks " << num_blocks << " tokens " << tokens;
    world.poison();
    world.call(pointers, tokens);
    for (std::size_t rank = 0; rank < batches.size(); ++rank) {
      EXPECT_EQ(world.message(rank), "") << to_string(problem) << " tokens " << tokens;
      outputs.push_back(batches[rank].y);
      shared_tasks += world.shared_tasks(rank);
    }
  }
  // Lines of several ranks land one after another: an expert's m-blocks may all be cut alone, so that no tasks have one's weights.
  if (in_pairs == InPairs::never || problem.num_ranks == 1 || problem.wire_form == WireForm::counted) {
    EXPECT_EQ(shared_tasks > 0, in_pairs != InPairs::never) << to_string(problem) << " blocks " << num_blocks;
  }
  return outputs;
}

void expect_same_bits(const Problem& problem, int num_blocks, const std::vector<std::int64_t>& calls,
                      InPairs in_pairs = InPairs::always) {
  const auto experts = std::make_shared<DenseExperts>(problem, 7);
  const auto alone = run(problem, experts, InPairs::never, num_blocks, calls);
  const auto sharing = run(problem, experts, in_pairs, num_blocks, calls);
  for (std::size_t i = 0; i < alone.size(); ++i) {
    EXPECT_EQ(alone[i], sharing[i]) << to_string(problem) << " blocks " << num_blocks << " output " << i;
  }
}

TEST(SharedWeights, give_the_bits_of_blocks_alone) {
  FLASHMOE_REQUIRE_GPUS(1);
  const std::vector<std::int64_t> calls{1, 128, 130, 145, 256, 300, 390, 520, 7, 650, 0, 260};
  for (const DType dtype : {DType::bf16, DType::fp16}) {
    for (const Form& form : kForms) {
      // Steps of k: 10 and 6, 5 and 3 and a rest, 12 and 16; the last down product is narrow but in the third.
      for (const auto& [hidden, intermediate] : {std::pair{584, 360}, {328, 200}, {768, 1024}}) {
        const Problem problem = few_experts(1, dtype, form, hidden, intermediate, 650);
        if (!runs_on_hopper(problem)) GTEST_SKIP() << "engine hopper does not run here";
        for (const int num_blocks : {4, 10, 0}) expect_same_bits(problem, num_blocks, calls);
      }
    }
  }
}

TEST(SharedWeights, give_the_bits_of_blocks_alone_on_several_ranks) {
  FLASHMOE_REQUIRE_GPUS(1);
  for (const Form& form : kForms) {
    for (const int num_ranks : {2, 3}) {
      const Problem problem = few_experts(num_ranks, DType::bf16, form, 584, 360, 520);
      if (!runs_on_hopper(problem)) GTEST_SKIP() << "engine hopper does not run here";
      for (const int num_blocks : {4, 10}) expect_same_bits(problem, num_blocks, {520, 3, 390, 200, 0, 450});
    }
  }
}

/// On the same counters, from one kernel to the other.
TEST(SharedWeights, calls_in_pairs_and_calls_of_blocks_alone_follow_each_other) {
  FLASHMOE_REQUIRE_GPUS(1);
  for (const Form& form : kForms) {
    for (const int num_ranks : {1, 2}) {
      const Problem problem = few_experts(num_ranks, DType::bf16, form, 584, 360, 650);
      if (!runs_on_hopper(problem)) GTEST_SKIP() << "engine hopper does not run here";
      for (const int num_blocks : {4, 66}) {
        expect_same_bits(problem, num_blocks, {650, 7, 300, 1, 0, 520, 100, 256, 255, 650}, InPairs::planned);
      }
    }
  }
}

/// Deadlines that pass while tasks are shared: whenever a block gives up, neither waits for the other for ever.
TEST(SharedWeights, end_with_a_call_that_gives_up) {
  FLASHMOE_REQUIRE_GPUS(1);
  const Problem problem = few_experts(1, DType::bf16, kForms[0], 1032, 1000, 1500);
  if (!runs_on_hopper(problem)) GTEST_SKIP() << "engine hopper does not run here";
  const Pairs pairs(InPairs::always);
  const auto experts = std::make_shared<DenseExperts>(problem, 7);
  Batch batch = make_batch(problem, 1500, 1);
  int num_given_up = 0;
  for (int i = 0; i < 40; ++i) {
    CudaWorld world(problem, experts, {.num_blocks = i % 2 == 0 ? 0 : 20, .deadline_seconds = 5.0});
    world.call({&batch}, 1500, 1e-6 * (1 + 2 * i));
    if (world.message(0).empty()) continue;
    EXPECT_THAT(world.message(0), ::testing::HasSubstr("waited")) << "deadline " << 1 + 2 * i << " us";
    ++num_given_up;
  }
  EXPECT_GT(num_given_up, 0);
}

TEST(SharedWeights, blocks_of_an_odd_number_stay_alone) {
  FLASHMOE_REQUIRE_GPUS(1);
  const Problem problem = few_experts(1, DType::bf16, kForms[0], 64, 64, 8);
  if (!runs_on_hopper(problem)) GTEST_SKIP() << "engine hopper does not run here";
  const Pairs pairs(InPairs::always);
  const CudaWorld world(problem, std::make_shared<DenseExperts>(problem, 7), {.num_blocks = 7});
  EXPECT_EQ(world.plan_of(8).tickets_at_once, 1);
}

}  // namespace
}  // namespace flashmoe::test
