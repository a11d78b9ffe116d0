// A call is one node of a CUDA graph, and a captured call replays with other routings and token counts.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "device.hpp"
#include "support/cuda_world.hpp"

namespace flashmoe::test {
namespace {

using cuda_backend::check;
using cuda_backend::DeviceGuard;
using cuda_backend::DeviceMemory;

const Problem kProblem{.num_ranks = 2, .hidden = 128, .intermediate = 64, .num_experts = 8, .top_k = 2,
                       .max_tokens = 256, .wire_form = WireForm::automatic, .wave_tokens = 64};

/// Buffers of one rank that a graph keeps pointing at, on the rank's GPU.
struct Slot {
  int device;
  DeviceMemory x, y, ids, weights, count;
  explicit Slot(int device_index)
      : device(device_index), x(device, bytes()), y(device, bytes()), ids(device, routes()), weights(device, routes()),
        count(device, 8) {}
  static std::size_t bytes() {
    return static_cast<std::size_t>(kProblem.max_tokens * kProblem.hidden) * dtype_bytes(kProblem.dtype);
  }
  static std::size_t routes() { return static_cast<std::size_t>(kProblem.max_tokens * kProblem.top_k) * 4; }
  void load(const Batch& batch) {
    const DeviceGuard guard(device);
    check(cudaMemcpy(x.as(), batch.x.data(), batch.x.size(), cudaMemcpyHostToDevice), "cudaMemcpy");
    check(cudaMemset(y.as(), kPoison, y.bytes()), "cudaMemset");
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

std::vector<Slot> make_slots(CudaWorld& world) {
  std::vector<Slot> slots;
  for (std::size_t rank = 0; rank < static_cast<std::size_t>(kProblem.num_ranks); ++rank) {
    slots.emplace_back(world.context(rank).device());
  }
  return slots;
}

/// One captured call of every rank, each on its own stream.
class Captured {
 public:
  Captured(CudaWorld& world, const std::vector<Slot>& slots, std::int64_t max_tokens, std::size_t layer = 0)
      : world_(world), layer_(layer) {
    for (std::size_t rank = 0; rank < slots.size(); ++rank) {
      const DeviceGuard guard(slots[rank].device);
      cudaGraph_t graph;
      check(cudaStreamBeginCapture(world.stream(rank), cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
      world.layer(rank, layer).forward(slots[rank].input(max_tokens), world.stream(rank));
      check(cudaStreamEndCapture(world.stream(rank), &graph), "cudaStreamEndCapture");
      std::size_t nodes = 0;
      check(cudaGraphGetNodes(graph, nullptr, &nodes), "cudaGraphGetNodes");
      EXPECT_EQ(nodes, 1u) << "a call must be exactly one launch";
      ::testing::Test::RecordProperty("kernel_launches", static_cast<int>(nodes));
      cudaGraphExec_t exec;
      check(cudaGraphInstantiate(&exec, graph, 0), "cudaGraphInstantiate");
      check(cudaGraphDestroy(graph), "cudaGraphDestroy");
      graphs_.push_back(exec);
    }
  }
  ~Captured() {
    for (cudaGraphExec_t graph : graphs_) cudaGraphExecDestroy(graph);
  }
  Captured(const Captured&) = delete;
  Captured& operator=(const Captured&) = delete;

  void launch() {
    for (std::size_t rank = 0; rank < graphs_.size(); ++rank) {
      const DeviceGuard guard(world_.context(rank).device());
      check(cudaGraphLaunch(graphs_[rank], world_.stream(rank)), "cudaGraphLaunch");
    }
  }
  void replay() {
    launch();
    world_.synchronize_all();
    for (std::size_t rank = 0; rank < graphs_.size(); ++rank) world_.layer(rank, layer_).status();
  }

 private:
  CudaWorld& world_;
  std::size_t layer_;
  std::vector<cudaGraphExec_t> graphs_;  // [num_ranks]
};

class Graphs : public ::testing::Test {
 protected:
  void SetUp() override { FLASHMOE_REQUIRE_GPUS(1); }

  static std::vector<Batch> load(std::vector<Slot>& slots, const std::vector<std::int64_t>& tokens,
                                 std::uint64_t seed) {
    std::vector<Batch> batches = make_batches(kProblem, tokens, seed, Routing::any);
    for (std::size_t rank = 0; rank < slots.size(); ++rank) slots[rank].load(batches[rank]);
    return batches;
  }
  static void store(const std::vector<Slot>& slots, std::vector<Batch>& batches) {
    for (std::size_t rank = 0; rank < slots.size(); ++rank) slots[rank].store(batches[rank]);
  }
  static void expect_right(const std::vector<Batch>& batches, const ExpertSource& experts) {
    for (std::size_t rank = 0; rank < batches.size(); ++rank) {
      const auto wanted = reference::layer(kProblem, experts, batches[rank].x_view(), batches[rank].routing());
      EXPECT_LE(error_in_bars(kProblem, batches[rank], wanted), 1.0) << "rank " << rank;
    }
  }
  /// Loads new tokens, replays, and compares with the reference.
  void run(Captured& captured, std::vector<Slot>& slots, const std::vector<std::int64_t>& tokens, std::uint64_t seed) {
    SCOPED_TRACE(seed);
    std::vector<Batch> batches = load(slots, tokens, seed);
    captured.replay();
    store(slots, batches);
    expect_right(batches, *experts_);
  }

  std::shared_ptr<DenseExperts> experts_ = std::make_shared<DenseExperts>(kProblem, 3);
};

TEST_F(Graphs, GRAPH1_GRAPH2_the_first_call_ever_is_captured_and_replays_with_new_routing_and_token_counts) {
  CudaWorld world(kProblem, experts_);
  std::vector<Slot> buffers = make_slots(world);
  Captured captured(world, buffers, 256);
  std::uint64_t seed = 10;
  for (const std::vector<std::int64_t>& tokens :
       {std::vector<std::int64_t>{256, 256}, {1, 200}, {0, 0}, {0, 77}, {130, 0}, {64, 65}}) {
    run(captured, buffers, tokens, ++seed);
  }
}

TEST_F(Graphs, GRAPH4_graphs_of_two_sizes_replay_in_either_order) {
  CudaWorld world(kProblem, experts_);
  std::vector<Slot> small_slots = make_slots(world);
  std::vector<Slot> large_slots = make_slots(world);
  Captured small(world, small_slots, 32);   // lined
  Captured large(world, large_slots, 256);  // counted
  for (std::uint64_t round = 0; round < 8; ++round) {
    if (round % 3 != 1) run(small, small_slots, {32, static_cast<std::int64_t>(round)}, 100 + round);
    if (round % 3 != 2) run(large, large_slots, {static_cast<std::int64_t>(20 * round), 256}, 200 + round);
  }
}

TEST_F(Graphs, GRAPH3_a_replay_survives_larger_eager_calls_and_memory_that_comes_and_goes) {
  CudaWorld world(kProblem, experts_);
  std::vector<Slot> buffers = make_slots(world);
  Captured captured(world, buffers, 8);
  std::vector<Batch> first = load(buffers, {8, 5}, 300);
  captured.replay();
  store(buffers, first);
  expect_right(first, *experts_);
  for (int round = 0; round < 3; ++round) {
    std::vector<Batch> eager = make_batches(kProblem, {256, 256}, 301);
    world.call({&eager[0], &eager[1]}, 256);
    for (std::size_t rank = 0; rank < 2; ++rank) ASSERT_EQ(world.message(rank), "");
    const DeviceMemory other(0, std::size_t{2} << 30);
    check(cudaMemset(other.as(), kPoison, other.bytes()), "cudaMemset");
    std::vector<Batch> again = load(buffers, {8, 5}, 300);
    captured.replay();
    store(buffers, again);
    for (std::size_t rank = 0; rank < 2; ++rank) EXPECT_EQ(again[rank].y, first[rank].y) << "round " << round;
  }
}

TEST_F(Graphs, GRAPH7_graphs_of_four_layers_on_one_heap_replay_without_a_pause) {
  std::vector<std::shared_ptr<const ExpertSource>> layers;
  for (std::uint64_t i = 0; i < 4; ++i) layers.push_back(std::make_shared<DenseExperts>(kProblem, i));
  CudaWorld world(kProblem, layers);
  std::vector<std::vector<Slot>> buffers;
  std::vector<std::unique_ptr<Captured>> captured;
  for (std::size_t layer = 0; layer < 4; ++layer) {
    buffers.push_back(make_slots(world));
    captured.push_back(std::make_unique<Captured>(world, buffers[layer], layer % 2 == 0 ? 256 : 32, layer));
  }
  for (std::uint64_t round = 0; round < 3; ++round) {
    std::vector<std::vector<Batch>> batches;
    for (std::size_t layer = 0; layer < 4; ++layer) {
      batches.push_back(load(buffers[layer], {20, 32}, 400 + 4 * round + layer));
    }
    for (const auto& graph : captured) graph->launch();
    world.synchronize_all();
    for (std::size_t layer = 0; layer < 4; ++layer) {
      for (std::size_t rank = 0; rank < 2; ++rank) world.layer(rank, layer).status();
      store(buffers[layer], batches[layer]);
      expect_right(batches[layer], *layers[layer]);
    }
  }
}

TEST_F(Graphs, GRAPH9_eager_calls_and_replays_take_turns_a_hundred_times) {
  CudaWorld world(kProblem, experts_);
  std::vector<Slot> buffers = make_slots(world);
  Captured captured(world, buffers, 32);
  for (std::uint64_t round = 0; round < 100; ++round) {
    run(captured, buffers, {static_cast<std::int64_t>(round % 33), 7}, 500 + round);
    const auto few = static_cast<std::int64_t>(round % 20);
    std::vector<Batch> eager = make_batches(kProblem, {9, few}, 600 + round, Routing::any);
    world.call({&eager[0], &eager[1]}, round % 2 == 0 ? 32 : 256);
    for (std::size_t rank = 0; rank < 2; ++rank) ASSERT_EQ(world.message(rank), "");
    expect_right(eager, *experts_);
  }
}

TEST_F(Graphs, a_count_in_device_memory_beyond_max_tokens_is_refused) {
  CudaWorld world(kProblem, experts_, {.deadline_seconds = 1.0});
  std::vector<Slot> buffers = make_slots(world);
  Captured captured(world, buffers, 32);
  for (Slot& slot : buffers) slot.load(make_batch(kProblem, 33, 1, Routing::any));
  EXPECT_THROW(captured.replay(), InvalidArgument);
}

TEST_F(Graphs, a_count_in_device_memory_beyond_the_rows_of_x_is_refused) {
  CudaWorld world(kProblem, experts_, {.deadline_seconds = 1.0});
  std::vector<Slot> buffers = make_slots(world);
  for (std::size_t rank = 0; rank < buffers.size(); ++rank) {
    buffers[rank].load(make_batch(kProblem, 9, 1, Routing::any));
    cuda_backend::CallInput input = buffers[rank].input(32);
    input.x.num_rows = input.y.num_rows = 8;
    world.layer(rank).forward(input, world.stream(rank));
  }
  world.synchronize_all();
  for (std::size_t rank = 0; rank < buffers.size(); ++rank) EXPECT_THROW(world.layer(rank).status(), InvalidArgument);
}

}  // namespace
}  // namespace flashmoe::test
