// First tasks that the blocks of the Hopper engine find from ids (src/cuda/hopper/opening.cuh) give the bits that claimed ones
// give, for few routes and for as many as a block looks at, whatever experts they go to, also beside calls that do not open; and
// all blocks but those that make lists find one where there are enough.
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
  int num_experts;
  int top_k;
  std::int64_t num_tokens;
  Routing routing = Routing::distinct;
  WireForm wire_form = WireForm::counted;
  bool weight_on_input = false;
  bool gated = true;
  int intermediate = 160;
  bool fits = true;  ///< the m-blocks of its largest calls can be cut early
};

Problem problem_of(const Shape& shape, int num_ranks = 1) {
  return {.num_ranks = num_ranks, .hidden = 192, .intermediate = shape.intermediate, .num_experts = shape.num_experts,
          .top_k = shape.top_k, .max_tokens = shape.num_tokens, .dtype = DType::bf16, .gated = shape.gated,
          .weight_on_input = shape.weight_on_input, .wire_form = shape.wire_form, .result_form = ResultForm::per_route};
}

bool opens(const Problem& problem) { return runs_on_hopper(problem) && !CudaWorld::in_pairs(); }

constexpr int kMakeLists = 2;  ///< blocks that do not open

struct Calls {
  std::vector<Batch> batches;
  std::vector<std::uint64_t> opened;  ///< first tasks of each
};

/// Of different numbers of tokens, one after another on the same counters.
Calls run(const Shape& shape, const std::shared_ptr<DenseExperts>& experts, bool early_cut, int num_blocks = 0) {
  const Problem problem = problem_of(shape);
  CudaWorld world(problem, experts, {.num_blocks = num_blocks, .deadline_seconds = 5.0, .early_cut = early_cut});
  const std::int64_t most = problem.max_tokens;
  Calls calls;
  for (const std::int64_t tokens : {most, most / 3, std::int64_t{1}, std::int64_t{0}, most - 1, most}) {
    calls.batches.push_back(make_batch(problem, tokens, calls.batches.size(), shape.routing));
    world.poison();
    world.call({&calls.batches.back()}, most);
    EXPECT_EQ(world.message(0), "") << to_string(problem);
    calls.opened.push_back(world.opened_tasks(0));
  }
  return calls;
}

TEST(Opening, gives_the_bits_of_claimed_tasks) {
  FLASHMOE_REQUIRE_GPUS(1);
  const std::vector<Shape> shapes{
      {9, 2, 1},
      {128, 8, 1, Routing::distinct, WireForm::lined},
      {128, 8, 16, Routing::any, WireForm::lined},
      {128, 8, 64},
      {128, 8, 512},                                               // as many routes as a block looks at
      {256, 8, 300, Routing::any},                                 // as many experts; tokens that go to one twice
      {16, 2, 2000, Routing::any, WireForm::counted, true},        // several m-blocks an expert, the last with more rows
      {8, 1, 2000, Routing::all_to_one},                           // first rows in the middle of an expert's
      {12, 3, 700, Routing::any, WireForm::counted, false, false}, // plain experts
      {64, 4, 40, Routing::any, WireForm::lined, true, true, 96},
      {40, 2, 2, Routing::distinct, WireForm::counted, false, true, 2880},  // tasks enough for all blocks
      {128, 8, 513},                                               // a route too many, and calls that open between
      {257, 8, 16},                                                // an expert too many
      {16, 1, 2300, Routing::all_to_one, WireForm::counted, false, true, 160, false},  // more m-blocks than alternate
      {16, 2, 100, Routing::masked},                               // given tickets are exits
  };
  for (const Shape& shape : shapes) {
    SCOPED_TRACE(fmt::format("{} experts, top_k {}, {} tokens", shape.num_experts, shape.top_k, shape.num_tokens));
    const Problem problem = problem_of(shape);
    const auto experts = std::make_shared<DenseExperts>(problem, 3);
    Calls opened = run(shape, experts, true);
    const Calls claimed = run(shape, experts, false);
    constexpr int kMostRoutes = 4096;
    constexpr int kMostExperts = 256;
    for (std::size_t i = 0; i < opened.batches.size(); ++i) {
      Batch& batch = opened.batches[i];
      EXPECT_EQ(batch.y, claimed.batches[i].y) << "batch " << i;
      const auto wanted = reference::layer(problem, *experts, batch.x_view(), batch.routing());
      EXPECT_LE(error_in_bars(problem, batch, wanted), 1.0) << "batch " << i;
      EXPECT_EQ(claimed.opened[i], 0u);
      const bool few = shape.num_experts <= kMostExperts && batch.num_tokens * shape.top_k <= kMostRoutes;
      const bool fits = shape.fits || batch.num_tokens < shape.num_tokens - 1;
      const bool has_routes = batch.num_tokens > 0 && shape.routing != Routing::masked;
      EXPECT_EQ(opened.opened[i] > 0, opens(problem) && few && fits && has_routes) << "batch " << i;
    }
  }
}

TEST(Opening, is_of_all_blocks_but_those_that_make_lists_where_there_are_tasks_enough) {
  FLASHMOE_REQUIRE_GPUS(1);
  const Shape shape{128, 8, 64};
  if (!opens(problem_of(shape))) GTEST_SKIP() << "only engine hopper without pairs opens";
  const auto experts = std::make_shared<DenseExperts>(problem_of(shape), 3);
  CudaWorld world(problem_of(shape), experts, {.deadline_seconds = 5.0});
  Batch batch = make_batch(problem_of(shape), 64, 1);
  world.call({&batch}, 64);
  EXPECT_EQ(world.opened_tasks(0), static_cast<std::uint64_t>(world.context(0).num_blocks() - kMakeLists)) << world.message(0);
}

TEST(Opening, is_of_half_tiles_where_half_of_the_blocks_would_have_none) {
  FLASHMOE_REQUIRE_GPUS(1);
  const Problem problem = problem_of({128, 8, 1});  // eight m-blocks of three up tiles
  if (!opens(problem)) GTEST_SKIP() << "only engine hopper without pairs opens";
  const auto experts = std::make_shared<DenseExperts>(problem, 3);
  for (const auto& [num_blocks, opened] : {std::pair(48 + kMakeLists, 48u), {47, 24u}}) {
    CudaWorld world(problem, experts, {.num_blocks = num_blocks, .deadline_seconds = 5.0});
    Batch batch = make_batch(problem, 1, 1);
    world.call({&batch}, 1);
    EXPECT_EQ(world.opened_tasks(0), opened) << world.message(0);
  }
}

TEST(Opening, is_of_one_block_of_three) {
  FLASHMOE_REQUIRE_GPUS(1);
  const Shape shape{16, 2, 100, Routing::any};
  if (!opens(problem_of(shape))) GTEST_SKIP() << "only engine hopper without pairs opens";
  const auto experts = std::make_shared<DenseExperts>(problem_of(shape), 3);
  const Calls opened = run(shape, experts, true, kMakeLists + 1);
  const Calls claimed = run(shape, experts, false, kMakeLists + 1);
  for (std::size_t i = 0; i < opened.batches.size(); ++i) {
    EXPECT_EQ(opened.batches[i].y, claimed.batches[i].y) << "batch " << i;
    EXPECT_EQ(opened.opened[i], opened.batches[i].num_tokens > 0 ? 1u : 0u) << "batch " << i;
  }
}

/// x has more rows, whose routes are masked: who took them for tokens would write theirs, too.
TEST(Opening, is_of_as_many_tokens_as_device_memory_says) {
  FLASHMOE_REQUIRE_GPUS(1);
  using cuda_backend::check;
  using cuda_backend::DeviceMemory;
  constexpr std::int64_t kRows = 64;
  const Problem problem = problem_of({128, 8, kRows});
  const auto experts = std::make_shared<DenseExperts>(problem, 3);
  CudaWorld world(problem, experts, {.deadline_seconds = 5.0});
  const cuda_backend::DeviceGuard guard(world.context(0).device());
  const int device = world.context(0).device();
  for (const std::int64_t tokens : {kRows, kRows / 3, std::int64_t{1}, std::int64_t{0}, kRows}) {
    SCOPED_TRACE(tokens);
    Batch batch = make_batch(problem, tokens, 1);
    world.poison();
    world.call({&batch}, kRows);
    EXPECT_EQ(world.message(0), "");
    const std::uint64_t opened = world.opened_tasks(0);
    const DeviceMemory x(device, kRows * problem.hidden * 2), y(device, x.bytes()), count(device, 8);
    const DeviceMemory ids(device, kRows * problem.top_k * 4), weights(device, ids.bytes());
    const auto copy = [](const DeviceMemory& to, const void* from, std::size_t bytes) {
      check(cudaMemset(to.as(), kPoison, to.bytes()), "cudaMemset");
      if (bytes > 0) check(cudaMemcpy(to.as(), from, bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
    };
    copy(x, batch.x.data(), batch.x.size());
    copy(y, nullptr, 0);
    copy(ids, batch.topk_ids.data(), batch.topk_ids.size() * 4);
    copy(weights, batch.topk_weights.data(), batch.topk_weights.size() * 4);
    copy(count, &tokens, 8);
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    world.layer(0).forward({.x = {x.as(), kRows}, .routing = {ids.as<std::int32_t>(), weights.as<float>()},
                            .y = {y.as(), kRows}, .max_tokens = kRows, .num_tokens = count.as<std::int64_t>()},
                           world.stream(0));
    world.synchronize_all();
    world.layer(0).status();
    std::vector<char> rows(y.bytes());
    check(cudaMemcpy(rows.data(), y.as(), rows.size(), cudaMemcpyDeviceToHost), "cudaMemcpy");
    std::vector<char> wanted(y.bytes(), static_cast<char>(kPoison));
    std::copy(batch.y.begin(), batch.y.end(), wanted.begin());
    EXPECT_EQ(rows, wanted);
    EXPECT_EQ(opened > 0, opens(problem) && tokens > 0);
  }
}

TEST(Opening, is_left_out_where_there_are_other_ranks) {
  FLASHMOE_REQUIRE_GPUS(1);
  const Problem problem = problem_of({16, 2, 8}, 2);
  const auto experts = std::make_shared<DenseExperts>(problem, 3);
  CudaWorld world(problem, experts, {.deadline_seconds = 5.0});
  std::vector<Batch> batches = make_batches(problem, {8, 8}, 1);
  world.call({&batches[0], &batches[1]}, 8);
  for (const std::size_t rank : {0u, 1u}) EXPECT_EQ(world.opened_tasks(rank), 0u) << world.message(rank);
}

/// Blocks have begun with its other tokens by then.
TEST(Opening, a_wrong_id_ends_the_call_and_the_next_ones) {
  FLASHMOE_REQUIRE_GPUS(1);
  for (const WireForm wire_form : {WireForm::counted, WireForm::lined}) {
    const Problem problem = problem_of({9, 2, 60, Routing::any, wire_form});
    const auto experts = std::make_shared<DenseExperts>(problem, 3);
    CudaWorld world(problem, experts, {.deadline_seconds = 5.0});
    Batch batch = make_batch(problem, 60, 1);
    batch.topk_ids[2 * 59 + 1] = 9;
    world.call({&batch}, 60);
    EXPECT_TRUE(world.threw<InvalidArgument>(0)) << world.message(0);
    EXPECT_THAT(world.message(0), ::testing::HasSubstr("topk_ids[59][1]"));
    batch.topk_ids[2 * 59 + 1] = 0;
    world.call({&batch}, 60);
    EXPECT_THAT(world.message(0), ::testing::HasSubstr("topk_ids[59][1]")) << "a rank that gave up says why to every later call";
  }
}

}  // namespace
}  // namespace flashmoe::test
