// Random layers on the GPU against two oracles: the fp64 reference for values, and the emulator for the protocol
// (route lists, slots, counters and bytes equal; outputs bitwise where every sum is exact). Cases are prepared and
// judged by a thread a core; the GPU runs one at a time.
// FLASHMOE_CASES sets how many cases run (default 60), FLASHMOE_FIRST_CASE where they start. The last line printed is
// the record: cases, failures, largest relative L2 a dtype, seconds in all and beside the GPU.
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>

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
      const bool none = rng.below(draws++, 4) == 0;
      const auto count = static_cast<std::uint64_t>(p.max_tokens) + 1;
      tokens.push_back(none ? 0 : static_cast<std::int64_t>(rng.below(draws++, count)));
    }
    it.tokens.push_back(tokens);
  }
  return it;
}

std::vector<Batch> make_batches(const Case& it, std::size_t call, std::uint64_t seed) {
  std::vector<Batch> batches;
  for (std::size_t rank = 0; rank < it.tokens[call].size(); ++rank) {
    const std::uint64_t batch_seed = seed * 1000 + call * 64 + rank;
    batches.push_back(make_batch(it.problem, it.tokens[call][rank], batch_seed, it.routing, it.values));
  }
  return batches;
}

std::vector<Batch*> pointers(std::vector<Batch>& batches) {
  std::vector<Batch*> result;
  for (Batch& batch : batches) result.push_back(&batch);
  return result;
}

constexpr std::uint64_t kSequenceBits = 0xffffffffffffull;  // of a line's tag; the rest is the heap's generation

/// Where two heaps that lived through the same calls differ, empty where they do not: counters and rows byte by byte,
/// lines by sequence number and data.
std::string compare_heaps(const HeapLayout& layout, const char* cpu, const char* gpu, bool exact) {
  std::vector<HeapRegion> whole{HeapRegion::consumed, HeapRegion::arrivals, HeapRegion::result_counts,
                                HeapRegion::tokens};
  std::vector<HeapRegion> lined{HeapRegion::lists, HeapRegion::lined_ids, HeapRegion::lined_rows};
  if (exact) {
    whole.push_back(HeapRegion::results);
    lined.push_back(HeapRegion::lined_results);
  }
  for (const HeapRegion region : whole) {
    const std::size_t at = layout.offset_of(region);
    const std::size_t bytes = layout.region_bytes[static_cast<int>(region)];
    const auto differ = std::mismatch(cpu + at, cpu + at + bytes, gpu + at);
    const auto byte = static_cast<std::size_t>(differ.first - cpu) - at;
    if (byte != bytes) return fmt::format("{} differ at byte {}", to_string(region), byte);
  }
  for (const HeapRegion region : lined) {
    const auto* mine = reinterpret_cast<const Line*>(cpu + layout.offset_of(region));
    const auto* theirs = reinterpret_cast<const Line*>(gpu + layout.offset_of(region));
    const std::size_t count = layout.region_bytes[static_cast<int>(region)] / sizeof(Line);
    for (std::size_t line = 0; line < count; ++line) {
      const bool same = (mine[line].tag & kSequenceBits) == (theirs[line].tag & kSequenceBits) &&
                        std::memcmp(mine[line].data, theirs[line].data, sizeof(Line::data)) == 0;
      if (!same) return fmt::format("{} differ at line {}", to_string(region), line);
    }
  }
  return {};
}

/// What the cases of a run come to.
struct Tally {
  std::mutex mutex;
  std::vector<std::string> failures;
  std::map<std::string, double> max_rel_l2;
  double gpu_seconds = 0;

  void fail(const std::string& what) {
    const std::lock_guard lock(mutex);
    failures.push_back(what);
  }
};

/// One case of the run: the oracles' answers, then the GPU's, then the comparison.
class CaseRun {
 public:
  CaseRun(std::uint64_t seed, int num_devices, Tally& tally) : seed_(seed), num_devices_(num_devices), tally_(tally) {}

  void run(std::mutex& gpu_mutex) {
    try {
      run_oracles();
      {
        const std::lock_guard lock(gpu_mutex);
        const auto begin = std::chrono::steady_clock::now();
        run_gpu();
        tally_.gpu_seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      }
      judge();
    } catch (const std::exception& error) {
      fail(error.what());
    }
  }

 private:
  std::size_t num_ranks() const { return static_cast<std::size_t>(it_.problem.num_ranks); }

  void fail(const std::string& what) {
    const int routing = static_cast<int>(it_.routing);
    tally_.fail(fmt::format("case {} ({}, routing {}): {}", seed_, to_string(it_.problem), routing, what));
  }

  void run_oracles() {
    CpuWorld cpu(it_.problem, experts_, {}, CudaWorld::traits(it_.problem));
    for (std::size_t call = 0; call < it_.tokens.size(); ++call) {
      inputs_.push_back(make_batches(it_, call, seed_));
      on_cpu_.push_back(inputs_.back());
      cpu.poison();
      cpu.call(pointers(on_cpu_.back()), it_.problem.max_tokens);
      for (std::size_t rank = 0; rank < num_ranks(); ++rank) {
        if (const std::string error = cpu.message(rank); !error.empty()) fail("the emulator says " + error);
        cpu_payload_ += cpu.payload_bytes(rank);
      }
    }
    const std::size_t heap_bytes = cpu.heap().layout().total_bytes;
    for (std::size_t rank = 0; rank < num_ranks(); ++rank) {
      const char* base = cpu.heap().bases()[rank];
      cpu_heaps_.emplace_back(base, base + heap_bytes);
    }
  }

  void run_gpu() {
    CudaWorld gpu(it_.problem, experts_, {.deadline_seconds = 5.0}, num_devices_);
    layout_ = gpu.layout();
    for (const std::vector<Batch>& inputs : inputs_) {
      on_gpu_.push_back(inputs);
      gpu.poison();
      gpu.call(pointers(on_gpu_.back()), it_.problem.max_tokens);
      for (std::size_t rank = 0; rank < num_ranks(); ++rank) {
        if (const std::string error = gpu.message(rank); !error.empty()) throw std::runtime_error(error);
        gpu_payload_ += gpu.payload_bytes(rank);
      }
    }
    for (std::size_t rank = 0; rank < num_ranks(); ++rank) gpu_heaps_.push_back(gpu.read_heap(rank));
  }

  void judge() {
    const bool exact = it_.values == Values::small_integers;
    double most = 0;
    for (std::size_t call = 0; call < on_gpu_.size(); ++call) {
      for (std::size_t rank = 0; rank < num_ranks(); ++rank) {
        const Batch& batch = on_gpu_[call][rank];
        const auto wanted = reference::layer(it_.problem, *experts_, batch.x_view(), batch.routing());
        if (wanted.empty()) continue;
        const double error = reference::relative_l2(batch.output(it_.problem), wanted);
        const double bar = error_bar(it_.problem.dtype, wanted.size());
        // Not "error > bar": NaN must fail.
        if (!(error <= bar)) fail(fmt::format("relative L2 {} above {} in call {} on rank {}", error, bar, call, rank));
        const bool same_bits = !exact || batch.y == on_cpu_[call][rank].y;
        if (!same_bits) fail(fmt::format("other bits in call {} on rank {}", call, rank));
        most = std::max(most, error);
      }
    }
    for (std::size_t rank = 0; rank < num_ranks(); ++rank) {
      const std::string difference = compare_heaps(layout_, cpu_heaps_[rank].data(), gpu_heaps_[rank].data(), exact);
      if (!difference.empty()) fail(fmt::format("heap of rank {}: {}", rank, difference));
    }
    if (gpu_payload_ != cpu_payload_) {
      fail(fmt::format("{} bytes of rows, the emulator {}", gpu_payload_, cpu_payload_));
    }
    const std::lock_guard lock(tally_.mutex);
    double& record = tally_.max_rel_l2[std::string(to_string(it_.problem.dtype))];
    record = std::max(record, most);
  }

  std::uint64_t seed_;
  int num_devices_;
  Tally& tally_;
  Case it_ = make_case(seed_);
  std::shared_ptr<DenseExperts> experts_ = std::make_shared<DenseExperts>(it_.problem, seed_, it_.values);
  HeapLayout layout_;
  std::vector<std::vector<Batch>> inputs_, on_cpu_, on_gpu_;  // [call][rank]
  std::vector<std::vector<char>> cpu_heaps_, gpu_heaps_;      // [rank], after the last call
  std::uint64_t cpu_payload_ = 0;
  std::uint64_t gpu_payload_ = 0;
};

TEST(RandomConformance, gpu_agrees_with_reference_and_emulator) {
  FLASHMOE_REQUIRE_GPUS(1);
  const int num_devices = num_visible_gpus();
  const int cases = from_environment("FLASHMOE_CASES", 60);
  const auto first = static_cast<std::uint64_t>(from_environment("FLASHMOE_FIRST_CASE", 0));
  constexpr std::size_t kEnough = 5;  // failures, after which nothing new is to be learnt
  Tally tally;
  std::mutex gpu_mutex;
  std::atomic<int> next = 0;
  const auto begin = std::chrono::steady_clock::now();
  {
    std::vector<std::jthread> threads;
    for (unsigned i = 0; i < std::max(2u, std::thread::hardware_concurrency()); ++i) {
      threads.emplace_back([&] {
        for (int index = next++; index < cases; index = next++) {
          CaseRun(first + static_cast<std::uint64_t>(index), num_devices, tally).run(gpu_mutex);
          const std::lock_guard lock(tally.mutex);
          if (tally.failures.size() >= kEnough) return;
        }
      });
    }
  }
  for (const std::string& failure : tally.failures) ADD_FAILURE() << failure;
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  std::string errors;
  for (const auto& [dtype, error] : tally.max_rel_l2) {
    errors += fmt::format("{}\"{}\": {:.3g}", errors.empty() ? "" : ", ", dtype, error);
  }
  fmt::print("{{\"cases\": {}, \"failures\": {}, \"gpus\": {}, \"max_rel_l2\": {{{}}}, \"seconds\": {:.1f}, "
             "\"gpu_seconds\": {:.1f}}}\n",
             std::min(next.load(), cases), tally.failures.size(), num_devices, errors, seconds, tally.gpu_seconds);
}

}  // namespace
}  // namespace flashmoe::test
