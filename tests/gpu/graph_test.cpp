// A call is one node of a CUDA graph, and a captured call replays with other routings and token counts.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "device.hpp"
#include "support/cuda_world.hpp"

namespace flashmoe::test {
namespace {

using cuda_backend::check;
using cuda_backend::DeviceMemory;

const Problem kProblem{.num_ranks = 2, .hidden = 128, .intermediate = 64, .num_experts = 8, .top_k = 2,
                       .max_tokens = 256, .wire_form = WireForm::automatic, .wave_tokens = 64};

/// Buffers of one rank that a graph keeps pointing at.
struct Slot {
  DeviceMemory x, y, ids, weights, count;
  explicit Slot(const Problem& problem)
      : x(0, bytes(problem)), y(0, bytes(problem)),
        ids(0, static_cast<std::size_t>(problem.max_tokens * problem.top_k) * 4),
        weights(0, static_cast<std::size_t>(problem.max_tokens * problem.top_k) * 4), count(0, 8) {}
  static std::size_t bytes(const Problem& problem) {
    return static_cast<std::size_t>(problem.max_tokens * problem.hidden) * dtype_bytes(problem.dtype);
  }
  void load(const Batch& batch) {
    check(cudaMemcpy(x.as(), batch.x.data(), batch.x.size(), cudaMemcpyHostToDevice), "cudaMemcpy");
    check(cudaMemset(y.as(), 0xff, y.bytes()), "cudaMemset");
    check(cudaMemcpy(ids.as(), batch.topk_ids.data(), batch.topk_ids.size() * 4, cudaMemcpyHostToDevice), "cudaMemcpy");
    check(cudaMemcpy(weights.as(), batch.topk_weights.data(), batch.topk_weights.size() * 4, cudaMemcpyHostToDevice),
          "cudaMemcpy");
    check(cudaMemcpy(count.as(), &batch.num_tokens, 8, cudaMemcpyHostToDevice), "cudaMemcpy");
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }
  void store(Batch& batch) const {
    check(cudaMemcpy(batch.y.data(), y.as(), batch.y.size(), cudaMemcpyDeviceToHost), "cudaMemcpy");
  }
  cuda_backend::CallInput input(std::int64_t max_tokens) const {
    return {.x = {x.as(), max_tokens}, .routing = {ids.as<std::int32_t>(), weights.as<float>()},
            .y = {y.as(), max_tokens}, .max_tokens = max_tokens, .num_tokens = count.as<std::int64_t>()};
  }
};

/// One captured call of every rank, each on its own stream.
struct Captured {
  std::vector<cudaGraphExec_t> graphs;
  Captured(CudaWorld& world, std::vector<Slot>& slots, std::int64_t max_tokens) {
    for (std::size_t rank = 0; rank < slots.size(); ++rank) {
      cudaGraph_t graph;
      check(cudaStreamBeginCapture(world.stream(rank), cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
      world.layer(rank).forward(slots[rank].input(max_tokens), world.stream(rank));
      check(cudaStreamEndCapture(world.stream(rank), &graph), "cudaStreamEndCapture");
      std::size_t nodes = 0;
      check(cudaGraphGetNodes(graph, nullptr, &nodes), "cudaGraphGetNodes");
      EXPECT_EQ(nodes, 1u) << "a call must be exactly one launch";
      cudaGraphExec_t exec;
      check(cudaGraphInstantiate(&exec, graph, 0), "cudaGraphInstantiate");
      check(cudaGraphDestroy(graph), "cudaGraphDestroy");
      graphs.push_back(exec);
    }
  }
  ~Captured() {
    for (cudaGraphExec_t graph : graphs) cudaGraphExecDestroy(graph);
  }
  void replay(CudaWorld& world) {
    for (std::size_t rank = 0; rank < graphs.size(); ++rank) {
      check(cudaGraphLaunch(graphs[rank], world.stream(rank)), "cudaGraphLaunch");
    }
    world.synchronize_all();
    for (std::size_t rank = 0; rank < graphs.size(); ++rank) world.layer(rank).status();
  }
};

class Graphs : public ::testing::Test {
 protected:
  void run(CudaWorld& world, Captured& captured, std::vector<Slot>& slots, std::vector<std::int64_t> tokens,
           std::uint64_t seed) {
    std::vector<Batch> batches;
    for (std::size_t rank = 0; rank < slots.size(); ++rank) {
      batches.push_back(make_batch(kProblem, tokens[rank], seed + rank, Routing::any));
      slots[rank].load(batches[rank]);
    }
    captured.replay(world);
    for (std::size_t rank = 0; rank < slots.size(); ++rank) {
      slots[rank].store(batches[rank]);
      const auto wanted = reference::layer(kProblem, *experts_, batches[rank].x_view(), batches[rank].routing());
      EXPECT_LE(reference::relative_l2(batches[rank].output(kProblem), wanted), 1.3 * tolerance(kProblem.dtype))
          << "seed " << seed << " rank " << rank;
    }
  }
  std::vector<Slot> slots() {
    std::vector<Slot> result;
    for (int rank = 0; rank < kProblem.num_ranks; ++rank) result.emplace_back(kProblem);
    return result;
  }
  std::shared_ptr<DenseExperts> experts_ = std::make_shared<DenseExperts>(kProblem, 3);
};

TEST_F(Graphs, a_replay_takes_new_routing_and_token_counts) {
  FLASHMOE_REQUIRE_GPUS(1);
  CudaWorld world(kProblem, experts_);
  std::vector<Slot> buffers = slots();
  Captured captured(world, buffers, 256);
  std::uint64_t seed = 10;
  for (const std::vector<std::int64_t>& tokens :
       {std::vector<std::int64_t>{256, 256}, {1, 200}, {0, 0}, {0, 77}, {130, 0}, {64, 65}}) {
    run(world, captured, buffers, tokens, seed += 10);
  }
}

TEST_F(Graphs, graphs_of_two_sizes_replay_in_either_order) {
  FLASHMOE_REQUIRE_GPUS(1);
  CudaWorld world(kProblem, experts_);
  std::vector<Slot> small_slots = slots();
  std::vector<Slot> large_slots = slots();
  Captured small(world, small_slots, 32);   // lined
  Captured large(world, large_slots, 256);  // counted
  for (std::uint64_t round = 0; round < 8; ++round) {
    if (round % 3 != 1) run(world, small, small_slots, {32, static_cast<std::int64_t>(round)}, 100 + round * 10);
    if (round % 3 != 2) run(world, large, large_slots, {static_cast<std::int64_t>(20 * round), 256}, 200 + round * 10);
  }
}

TEST_F(Graphs, a_count_in_device_memory_beyond_max_tokens_is_refused) {
  FLASHMOE_REQUIRE_GPUS(1);
  CudaWorld world(kProblem, experts_, {.deadline_seconds = 1.0});
  std::vector<Slot> buffers = slots();
  Captured captured(world, buffers, 32);
  for (Slot& slot : buffers) slot.load(make_batch(kProblem, 33, 1, Routing::any));
  EXPECT_THROW(captured.replay(world), InvalidArgument);
}

}  // namespace
}  // namespace flashmoe::test
