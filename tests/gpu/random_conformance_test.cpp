// Random layers on the GPU against two oracles: the fp64 reference for values, and the emulator for the protocol
// (route lists, counters and bytes equal; outputs bitwise where every sum is exact).
// FLASHMOE_CASES sets how many cases run (default 60), FLASHMOE_FIRST_CASE where they start. The last line printed is
// the record: cases, failures, largest relative L2 a dtype.
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

#include "device.hpp"
#include "support/cpu_world.hpp"
#include "support/cuda_world.hpp"

namespace flashmoe::test {
namespace {

int from_environment(const char* name, int fallback) {
  const char* value = std::getenv(name);
  return value != nullptr ? std::atoi(value) : fallback;
}

struct Case {
  Problem problem;
  Routing routing = Routing::any;
  Values values = Values::real;
  std::vector<std::vector<std::int64_t>> tokens;  // [call][rank]
};

template <class T>
T pick(const CounterRng& rng, std::uint64_t& draws, std::initializer_list<T> options) {
  return options.begin()[rng.below(draws++, options.size())];
}

Case make_case(std::uint64_t seed) {
  const CounterRng rng(seed, 7);
  std::uint64_t draws = 0;
  Case it;
  Problem& p = it.problem;
  p.num_ranks = pick(rng, draws, {1, 2, 3, 4, 4, 8});
  p.num_experts = p.num_ranks * pick(rng, draws, {1, 2, 3, 8, 17});
  p.top_k = std::min(pick(rng, draws, {1, 2, 3, 4, 8}), p.num_experts);
  p.hidden = 8 * static_cast<int>(1 + rng.below(draws++, 40));
  p.intermediate = 8 * static_cast<int>(1 + rng.below(draws++, 30));
  p.dtype = pick(rng, draws, {DType::bf16, DType::bf16, DType::fp16, DType::tf32, DType::fp64});
  p.gated = rng.below(draws++, 3) != 0;
  p.activation = p.gated ? pick(rng, draws, {Activation::silu, Activation::gelu_erf, Activation::gelu_tanh,
                                             Activation::relu, Activation::swiglu_clamped})
                         : pick(rng, draws, {Activation::silu, Activation::relu_squared, Activation::gelu_tanh,
                                             Activation::identity});
  p.up_bias = rng.below(draws++, 3) == 0;
  p.down_bias = rng.below(draws++, 3) == 0;
  p.weight_on_input = rng.below(draws++, 5) == 0;
  p.max_tokens = pick<std::int64_t>(rng, draws, {1, 17, 64, 130, 300});
  p.wire_form = pick(rng, draws, {WireForm::automatic, WireForm::counted, WireForm::lined});
  p.result_form = p.wire_form == WireForm::lined ? ResultForm::per_route
                                                 : pick(rng, draws, {ResultForm::automatic, ResultForm::per_route,
                                                                     ResultForm::pre_reduced});
  p.wave_tokens = pick<std::int64_t>(rng, draws, {0, 64, 70, 128});
  p.wave_ring = pick(rng, draws, {0, 1, 2, 3});
  it.routing = pick(rng, draws, {Routing::any, Routing::any, Routing::distinct, Routing::all_to_one,
                                 Routing::last_rank, Routing::masked});
  if (rng.below(draws++, 4) == 0) {
    it.values = Values::small_integers;
    p.gated = false;
    p.activation = pick(rng, draws, {Activation::identity, Activation::relu});
    p.intermediate = 8;  // with |values| <= 2 every sum stays below 2^8: exact in bf16 too
    p.hidden = 8;
    p.top_k = std::min(p.top_k, 2);
    p.up_bias = p.down_bias = p.weight_on_input = false;
  }
  const int calls = 3;
  for (int call = 0; call < calls; ++call) {
    std::vector<std::int64_t> tokens;
    for (int rank = 0; rank < p.num_ranks; ++rank) {
      tokens.push_back(rng.below(draws++, 4) == 0
                           ? 0
                           : static_cast<std::int64_t>(rng.below(draws++, static_cast<std::uint64_t>(p.max_tokens) + 1)));
    }
    it.tokens.push_back(tokens);
  }
  return it;
}

std::vector<Batch> make_batches(const Case& it, std::size_t call, std::uint64_t seed) {
  std::vector<Batch> batches;
  for (std::size_t rank = 0; rank < it.tokens[call].size(); ++rank) {
    batches.push_back(make_batch(it.problem, it.tokens[call][rank], seed * 1000 + call * 64 + rank, it.routing, it.values));
  }
  return batches;
}

std::vector<Batch*> pointers(std::vector<Batch>& batches) {
  std::vector<Batch*> result;
  for (Batch& batch : batches) result.push_back(&batch);
  return result;
}

/// Counters equal, and the words of every list's first line (its head and first entries).
void expect_equal_protocol(const HeapLayout& layout, const char* cpu, const char* gpu) {
  for (const HeapRegion region : {HeapRegion::consumed, HeapRegion::arrivals, HeapRegion::result_counts}) {
    const std::size_t at = layout.offset_of(region);
    EXPECT_EQ(std::memcmp(cpu + at, gpu + at, layout.region_bytes[static_cast<int>(region)]), 0) << to_string(region);
  }
  const Geometry& g = layout.geometry;
  for (int source = 0; source < g.num_ranks; ++source) {
    for (int slot = 0; slot < g.wave_ring; ++slot) {
      const auto* mine = reinterpret_cast<const Line*>(cpu + layout.list(source, slot));
      const auto* theirs = reinterpret_cast<const Line*>(gpu + layout.list(source, slot));
      if (mine->tag == 0) continue;
      const auto entries = static_cast<std::int64_t>(mine->data[0] >> 32);
      const std::int64_t words = RouteImage::num_words(g.num_local_experts, entries, false);
      for (std::int64_t word = 0; word < words; ++word) {
        const std::int64_t line = word / Line::kDataWords;
        ASSERT_EQ(mine[line].data[word % Line::kDataWords], theirs[line].data[word % Line::kDataWords])
            << "list of source " << source << " slot " << slot << " word " << word;
      }
    }
  }
}

TEST(RandomConformance, gpu_agrees_with_reference_and_emulator) {
  FLASHMOE_REQUIRE_GPUS(1);
  int num_devices = 0;
  cudaGetDeviceCount(&num_devices);
  const int first = from_environment("FLASHMOE_FIRST_CASE", 0);
  const int cases = from_environment("FLASHMOE_CASES", 60);
  std::map<std::string, double> max_rel_l2;
  int failures = 0;
  for (int seed = first; seed < first + cases; ++seed) {
    const Case it = make_case(static_cast<std::uint64_t>(seed));
    SCOPED_TRACE(fmt::format("case {}: {}, wire {}, results {}", seed, static_cast<int>(it.routing),
                             to_string(it.problem.wire_form), to_string(it.problem.result_form)));
    const bool failed_before = ::testing::Test::HasFailure();
    auto experts = std::make_shared<DenseExperts>(it.problem, static_cast<std::uint64_t>(seed), it.values);
    CudaWorld gpu(it.problem, experts, {.deadline_seconds = 5.0}, num_devices);
    CpuWorld cpu(it.problem, experts, {}, cuda_backend::engine_traits(it.problem));
    std::uint64_t cpu_payload = 0;
    for (std::size_t call = 0; call < it.tokens.size(); ++call) {
      std::vector<Batch> on_gpu = make_batches(it, call, static_cast<std::uint64_t>(seed));
      std::vector<Batch> on_cpu = on_gpu;
      gpu.call(pointers(on_gpu), it.problem.max_tokens);
      for (const cpu::CallStats& stats : cpu.call(pointers(on_cpu), it.problem.max_tokens)) {
        cpu_payload += stats.traffic.payload_bytes;
      }
      for (std::size_t rank = 0; rank < on_gpu.size(); ++rank) {
        ASSERT_EQ(gpu.message(rank), "") << "call " << call << " rank " << rank;
        ASSERT_EQ(cpu.message(rank), "") << "call " << call << " rank " << rank;
        const auto wanted =
            reference::layer(it.problem, *experts, on_gpu[rank].x_view(), on_gpu[rank].routing());
        const double error = reference::relative_l2(on_gpu[rank].output(it.problem), wanted);
        // Three roundings give 0.95 of the bf16 bar on average; few elements scatter around it.
        const double slack = wanted.size() < 1024 ? 2.0 : wanted.size() < (1u << 16) ? 1.4 : 1.0;
        EXPECT_LE(error, tolerance(it.problem.dtype) * slack) << "call " << call << " rank " << rank;
        double& most = max_rel_l2[std::string(to_string(it.problem.dtype))];
        most = std::max(most, error);
        if (it.values == Values::small_integers) {
          EXPECT_EQ(on_gpu[rank].y, on_cpu[rank].y) << "call " << call << " rank " << rank;
        }
      }
    }
    std::uint64_t gpu_payload = 0;
    for (int rank = 0; rank < it.problem.num_ranks; ++rank) {
      gpu_payload += gpu.context(static_cast<std::size_t>(rank)).state().payload_bytes;
      const std::vector<char> heap = gpu.read_heap(static_cast<std::size_t>(rank));
      expect_equal_protocol(gpu.layout(), cpu.heap().bases()[rank], heap.data());
    }
    EXPECT_EQ(gpu_payload, cpu_payload);
    if (!failed_before && ::testing::Test::HasFailure()) ++failures;
    if (failures > 5) break;
    if ((seed - first) % 100 == 99) fmt::print(stderr, "{} cases\n", seed - first + 1);
  }
  fmt::print("{{\"cases\": {}, \"failures\": {}, \"gpus\": {}, \"max_rel_l2\": {{", cases, failures, num_devices);
  const char* comma = "";
  for (const auto& [dtype, error] : max_rel_l2) {
    fmt::print("{}\"{}\": {:.3g}", comma, dtype, error);
    comma = ", ";
  }
  fmt::print("}}}}\n");
}

}  // namespace
}  // namespace flashmoe::test
