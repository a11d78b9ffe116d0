// Failures that users of other MoE libraries reported, as tests of the CPU backend: docs/cases.md says which report
// became which test, here or elsewhere. T tokens on a rank, E experts in all, K experts per token, R ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <chrono>
#include <fstream>
#include <thread>

#include "conformance/group.hpp"
#include "flashmoe/error.hpp"
#include "support/cpu_world.hpp"
#include "support/dice.hpp"
#include "support/sanitized.hpp"

namespace flashmoe::test {
namespace {

using testing::HasSubstr;

struct CpuBackend {
  using World = CpuWorld;
};
using CpuGroup = Group<CpuBackend>;

Problem problem_of(int num_ranks, int num_experts, int top_k, std::int64_t max_tokens) {
  return {.num_ranks = num_ranks, .hidden = 64, .intermediate = 32, .num_experts = num_experts, .top_k = top_k,
          .max_tokens = max_tokens};
}

void sleep_up_to(Dice& dice, int most_us) {
  std::this_thread::sleep_for(std::chrono::microseconds(dice.between(0, most_us)));
}

/// Every rank's calls without a barrier between them; `tokens_of(call, rank)`. Compares each with the reference.
template <class TokensOf>
void run_without_barrier(const Problem& problem, int num_calls, int most_sleep_us, const TokensOf& tokens_of) {
  const auto experts = std::make_shared<DenseExperts>(problem, 1);
  CpuWorld world(problem, experts);
  world.each_rank([&](std::size_t rank) {
    Dice dice(rank);
    for (int call = 0; call < num_calls; ++call) {
      Batch batch = make_batch(problem, tokens_of(call, rank), static_cast<std::uint64_t>(call) * 8 + rank);
      sleep_up_to(dice, most_sleep_us);
      world.forward(rank, batch, problem.max_tokens);
      const auto wanted = reference::layer(problem, *experts, batch.x_view(), batch.routing());
      ASSERT_LE(error_in_bars(problem, batch, wanted), 1.0) << "call " << call;
    }
  });
  for (std::size_t rank = 0; rank < static_cast<std::size_t>(problem.num_ranks); ++rank) ASSERT_EQ(world.message(rank), "");
}

// ---- ZERO: no or one token ----------------------------------------------------------------------------------------

TEST(Cases, ZERO2_idle_ranks_on_one_buffer_without_barriers) {
  constexpr std::int64_t tokens[4][2] = {{0, 8}, {8, 0}, {8, 8}, {1, 0}};
  run_without_barrier(problem_of(2, 4, 2, 8), fewer_if_sanitized(200), 5000,
                      [&](int call, std::size_t rank) { return tokens[call % 4][rank]; });
}

TEST(Cases, ZERO8_a_rank_whose_experts_get_nothing) {
  const Problem problem = problem_of(2, 4, 2, 64);
  CpuGroup(problem).check(make_batches(problem, {64, 64}, 1, Routing::all_to_one));  // experts 0 and 1, of rank 0
}

TEST(Cases, ZERO10_a_rank_with_one_token) {
  const Problem problem = problem_of(2, 32, 8, 64);
  CpuGroup(problem).check(make_batches(problem, {1, 64}, 2));
}

// ---- DESYNC: ranks that differ ------------------------------------------------------------------------------------

TEST(Cases, DESYNC1_ranks_with_different_token_counts) {
  const Problem problem = problem_of(2, 8, 2, 64);
  CpuGroup(problem).check(make_batches(problem, {3, 64}, 3));
}

TEST(Cases, DESYNC2_odd_token_counts) {
  const Problem problem = problem_of(2, 8, 2, 4096);
  CpuGroup group(problem);
  for (const std::int64_t tokens : {1, 2, 3, 5, 6, 7, 4095, 4096}) {
    group.check(make_batches(problem, {tokens, tokens}, static_cast<std::uint64_t>(tokens)));
  }
  group.check(make_batches(problem, {5, 6}, 4));
}

TEST(Cases, DESYNC3_a_rank_that_often_has_nothing_still_takes_part) {
  run_without_barrier(problem_of(2, 4, 2, 8), fewer_if_sanitized(500), 0, [](int call, std::size_t rank) {
    return rank == 0 ? std::int64_t{8} : std::int64_t{Dice(static_cast<std::uint64_t>(call)).pick({0, 1, 5})};
  });
}

TEST(Cases, DESYNC4_chunks_that_are_empty_on_one_rank) {
  Problem whole = problem_of(2, 8, 2, 100);
  whole.wire_form = WireForm::counted;
  Problem chunked = whole;
  chunked.wave_tokens = 32;
  std::vector<Batch> wanted = make_batches(whole, {100, 10}, 5);
  std::vector<Batch> got = wanted;
  CpuGroup(whole).call(wanted);
  CpuGroup group(chunked);
  group.call(got);
  for (std::size_t rank = 0; rank < 2; ++rank) EXPECT_EQ(got[rank].y, wanted[rank].y);
}

TEST(Cases, DESYNC6_groups_of_one_rank_do_not_wait_for_each_other) {
  const Problem problem = problem_of(1, 4, 2, 16);
  CpuGroup first(problem), second(problem);
  for (int call = 0; call < 5; ++call) {
    if (call < 3) first.check(make_batches(problem, {16}, 6));
    second.check(make_batches(problem, {16}, 7));
    EXPECT_EQ(second.world().payload_bytes(0) + second.world().overhead_bytes(0), 0u);
  }
}

TEST(Cases, DESYNC13_every_small_token_count_with_every_roster) {
  const Problem problem = problem_of(2, 8, 2, 4096);
  const auto experts = std::make_shared<DenseExperts>(problem, 1);
  for (const Roster roster : {Roster{1, 1}, Roster{2, 3}, Roster{3, 1}}) {
    CpuWorld world(problem, experts, {.roster = roster, .num_threads = 2});
    std::vector<std::int64_t> counts{255, 256, 257, 512, 4096};
    for (std::int64_t tokens = 1; tokens <= 130; tokens += kSanitized ? 13 : 1) counts.push_back(tokens);
    for (const std::int64_t tokens : counts) {
      std::vector<Batch> batches = make_batches(problem, {tokens, tokens}, static_cast<std::uint64_t>(tokens));
      world.poison();
      world.call({&batches[0], &batches[1]}, 4096);
      for (std::size_t rank = 0; rank < 2; ++rank) {
        ASSERT_EQ(world.message(rank), "") << tokens << " tokens";
        const auto wanted = reference::layer(problem, *experts, batches[rank].x_view(), batches[rank].routing());
        ASSERT_LE(error_in_bars(problem, batches[rank], wanted), 1.0);
      }
    }
  }
}

// ---- CAP: capacity ------------------------------------------------------------------------------------------------

TEST(Cases, CAP2_small_buffers_filled_to_the_brim) {
  for (const std::int64_t tokens : {1, 2, 8, 32, 64, 255, 256}) {
    for (const WireForm wire : {WireForm::counted, WireForm::lined}) {
      Problem problem = problem_of(2, 8, 2, tokens);
      problem.wire_form = wire;
      CpuGroup(problem).check(make_batches(problem, {tokens, tokens}, 8, Routing::last_rank));
    }
  }
}

TEST(Cases, CAP3_few_rows_of_a_later_expert_behind_many_of_an_earlier_one) {
  const Problem problem = problem_of(2, 8, 1, 305);
  std::vector<Batch> batches = make_batches(problem, {305, 0}, 9);
  for (std::size_t token = 0; token < 305; ++token) batches[0].topk_ids[token] = token < 300 ? 0 : 3;
  CpuGroup group(problem);
  group.call(batches);
  group.expect_right(batches);
  const auto wanted = reference::layer(problem, group.experts(), batches[0].x_view(), batches[0].routing());
  const std::vector<double> last(wanted.end() - 5 * problem.hidden, wanted.end());
  EXPECT_LE(error_in_bars(problem, slice(problem, batches[0], 300, 305), last), 1.0);
}

TEST(Cases, CAP4_rows_around_65536_on_one_rank) {
  for (const std::int64_t tokens : {65535, 65536, 65537}) {
    Problem problem = problem_of(2, 4, 1, tokens);
    problem.hidden = 128;
    problem.intermediate = 8;
    problem.activation = Activation::relu;
    problem.gated = false;
    CpuGroup(problem).check(make_batches(problem, {tokens, 0}, 10, Routing::last_rank));
    if (kSanitized) break;
  }
}

TEST(Cases, CAP6_eight_layers_share_one_heap) {
  const Problem problem = problem_of(2, 8, 2, 128);
  std::vector<std::shared_ptr<const ExpertSource>> layers;
  for (std::uint64_t i = 0; i < 8; ++i) layers.push_back(std::make_shared<DenseExperts>(problem, i));
  CpuWorld world(problem, layers);
  for (std::size_t layer = 0; layer < 8; ++layer) {
    std::vector<Batch> batches = make_batches(problem, {128, 128}, layer);
    world.each_rank([&](std::size_t rank) { world.forward(rank, batches[rank], 128, 20.0, layer); });
    for (std::size_t rank = 0; rank < 2; ++rank) {
      ASSERT_EQ(world.message(rank), "");
      const auto wanted = reference::layer(problem, *layers[layer], batches[rank].x_view(), batches[rank].routing());
      EXPECT_LE(error_in_bars(problem, batches[rank], wanted), 1.0);
    }
  }
  EXPECT_EQ(world.context(0).make_call().epoch, 8u);  // one heap counted all of them
}

TEST(Cases, CAP9_all_rows_to_one_expert) {
  const Problem problem = problem_of(4, 64, 1, 4096);
  CpuGroup(problem).check(make_batches(problem, {4096, 4096, 0, 1}, 11, Routing::all_to_one));
}

// ---- IDS: expert ids ----------------------------------------------------------------------------------------------

TEST(Cases, IDS1_masked_routes_and_rows) {
  const Problem problem = problem_of(4, 8, 3, 100);
  std::vector<Batch> batches = make_batches(problem, {100, 100, 7, 0}, 12);
  Dice dice(1);
  for (Batch& batch : batches) {
    for (std::int32_t& id : batch.topk_ids) id = dice.below(10) < 3 ? -1 : id;
  }
  for (std::size_t choice = 0; choice < 3; ++choice) batches[0].topk_ids[3 * 50 + choice] = -1;
  CpuGroup group(problem);
  group.call(batches);
  group.expect_right(batches);
  const Batch masked = slice(problem, batches[0], 50, 51);
  EXPECT_EQ(masked.y, std::vector<char>(masked.y.size(), 0));
}

TEST(Cases, IDS2_eight_ranks_compute_what_one_does) {
  Problem one = problem_of(1, 128, 4, 80);
  one.result_form = ResultForm::per_route;
  std::vector<Batch> wanted = make_batches(one, {80}, 13);
  Problem eight = one;
  eight.num_ranks = 8;
  std::vector<Batch> got;
  for (int rank = 0; rank < 8; ++rank) got.push_back(slice(one, wanted[0], 10 * rank, 10 * rank + 10));
  CpuGroup(one).call(wanted);
  CpuGroup(eight).call(got);
  EXPECT_EQ(join(got).y, wanted[0].y);
}

TEST(Cases, IDS3_ids_are_global) {
  const Problem problem = problem_of(8, 256, 4, 64);
  CpuGroup group(problem);
  std::vector<Batch> all(8, make_batch(problem, 0, 1));
  all[0] = make_batch(problem, 64, 14);
  std::vector<Batch> only_rank_2 = all;
  for (std::int32_t& id : only_rank_2[0].topk_ids) id = id >= 64 && id < 96 ? id : -1;
  group.check(all);
  group.call(only_rank_2);
  group.expect_right(only_rank_2);
  for (std::size_t rank = 1; rank < 8; ++rank) {
    EXPECT_EQ(group.world().payload_bytes(rank) > 0, rank == 2) << "rank " << rank;
  }
}

// ---- ETOPK: expert counts -----------------------------------------------------------------------------------------

TEST(Cases, ETOPK1_uneven_splits_are_refused_with_the_padding_to_use) {
  EXPECT_THAT([] { validate(problem_of(3, 256, 8, 8)); },
              testing::ThrowsMessage<InvalidArgument>(HasSubstr("pad the layer to 258 experts")));
  EXPECT_THAT([] { validate(problem_of(4, 10, 2, 8)); },
              testing::ThrowsMessage<InvalidArgument>(HasSubstr("pad the layer to 12 experts")));
}

TEST(Cases, ETOPK2_seven_experts_padded_to_eight_on_two_ranks) {
  Problem seven = problem_of(1, 7, 2, 40);
  seven.result_form = ResultForm::per_route;
  std::vector<Batch> wanted = make_batches(seven, {40}, 15);
  Problem eight = seven;
  eight.num_ranks = 2;
  eight.num_experts = 8;
  std::vector<Batch> got{slice(seven, wanted[0], 0, 25), slice(seven, wanted[0], 25, 40)};
  CpuGroup(seven).call(wanted);
  CpuGroup(eight).call(got);
  EXPECT_EQ(join(got).y, wanted[0].y);
}

TEST(Cases, ETOPK3_ETOPK4_ETOPK8_any_number_of_experts) {
  struct Shape { int ranks, experts; };
  for (const Shape shape : {Shape{4, 8}, Shape{4, 64}, Shape{4, 160}, Shape{4, 256}, Shape{4, 384}, Shape{4, 512},
                            Shape{4, 896}, Shape{2, 1024}, Shape{5, 1025}, Shape{1, 1025}, Shape{8, 2048}, Shape{3, 51},
                            Shape{2, 32}, Shape{2, 34}, Shape{2, 66}, Shape{2, 2}}) {
    Problem problem = problem_of(shape.ranks, shape.experts, std::min(4, shape.experts), 64);
    problem.hidden = 128;
    problem.intermediate = 8;
    for (const WireForm wire : {WireForm::counted, WireForm::lined}) {
      problem.wire_form = wire;
      CpuGroup(problem).check(
          make_batches(problem, std::vector<std::int64_t>(static_cast<std::size_t>(shape.ranks), 64), 16));
    }
    if (kSanitized && shape.experts > 500) break;
  }
}

TEST(Cases, ETOPK7_top_k_of_six_and_of_all_experts) {
  for (const int top_k : {6, 32}) {
    for (const ResultForm form : {ResultForm::per_route, ResultForm::pre_reduced}) {
      Problem problem = problem_of(4, 32, top_k, 50);
      problem.result_form = form;
      CpuGroup(problem).check(make_batches(problem, {50, 1, 0, 33}, 17));
    }
  }
}

// ---- UNINIT: memory nobody wrote ----------------------------------------------------------------------------------

TEST(Cases, UNINIT1_idle_experts_on_poisoned_memory) {
  const Problem problem = problem_of(2, 8, 2, 60);
  std::vector<Batch> batches = make_batches(problem, {60, 60}, 18);
  for (Batch& batch : batches) {
    for (std::int32_t& id : batch.topk_ids) id = id % 5;  // experts 5, 6 and 7 idle
  }
  CpuGroup(problem).check(batches);
}

TEST(Cases, UNINIT3_ragged_experts_on_clean_and_on_poisoned_memory) {
  for (const DType dtype : {DType::bf16, DType::fp32, DType::fp64}) {
    Problem problem = problem_of(2, 6, 1, 65);
    problem.dtype = dtype;
    std::vector<Batch> batches = make_batches(problem, {65, 0}, 19);
    for (std::size_t token = 0; token < 65; ++token) batches[0].topk_ids[token] = token < 1 ? 3 : token < 32 ? 4 : 5;
    std::vector<Batch> clean = batches;
    CpuWorld fresh(problem, std::make_shared<DenseExperts>(problem, 1));
    fresh.call({&clean[0], &clean[1]}, 65);
    CpuGroup group(problem);
    group.call(batches);
    EXPECT_EQ(batches[0].y, clean[0].y) << to_string(dtype);
  }
}

TEST(Cases, UNINIT4_an_expert_with_tiny_weights) {
  Problem problem = problem_of(2, 4, 1, 10);
  problem.activation = Activation::silu;
  class TinyExperts : public ExpertSource {
   public:
    explicit TinyExperts(const Problem& p)
        : up_(stored(p, std::int64_t{p.up_columns()} * p.hidden)), down_(stored(p, std::int64_t{p.hidden} * p.intermediate)) {}
    std::shared_ptr<const ExpertParameters> expert(int) const override {
      return std::make_shared<ExpertParameters>(ExpertParameters{up_.data(), down_.data(), nullptr, nullptr});
    }

   private:
    static std::vector<char> stored(const Problem& p, std::int64_t count) {
      return random_elements(p.dtype, count, 1, 2, Values::real, 1e-23);
    }
    std::vector<char> up_, down_;
  };
  CpuWorld world(problem, std::make_shared<TinyExperts>(problem));
  std::vector<Batch> batches = make_batches(problem, {10, 10}, 20);
  world.call({&batches[0], &batches[1]}, 10);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    ASSERT_EQ(world.message(rank), "");
    for (const double value : batches[rank].output(problem)) EXPECT_LT(std::abs(value), 1e-30);
  }
}

// ---- RACE and DET: repeated calls ---------------------------------------------------------------------------------

TEST(Cases, RACE5_two_thousand_rounds_without_a_barrier_are_bitwise_equal) {
  Problem problem = problem_of(2, 4, 2, 2000);
  problem.result_form = ResultForm::per_route;
  const auto experts = std::make_shared<DenseExperts>(problem, 1);
  CpuWorld world(problem, experts);
  world.each_rank([&](std::size_t rank) {
    Dice dice(rank);
    Batch batch = make_batch(problem, rank == 0 ? 16 : 11, 21 + rank);
    world.forward(rank, batch, 16);
    const std::vector<char> first = batch.y;
    for (int round = 1; round < fewer_if_sanitized(2000); ++round) {
      if (dice.one_in(4)) sleep_up_to(dice, 3000);
      batch.poison();
      world.forward(rank, batch, round % 3 == 0 ? 2000 : 16);
      ASSERT_EQ(world.plan(rank).wire_form, round % 3 == 0 ? WireForm::counted : WireForm::lined);
      ASSERT_EQ(batch.y, first) << "round " << round;
    }
  });
  for (std::size_t rank = 0; rank < 2; ++rank) ASSERT_EQ(world.message(rank), "");
}

TEST(Cases, RACE6_many_small_experts_are_bitwise_equal) {
  Problem problem = problem_of(2, 384, 6, 256);
  problem.hidden = 16;
  problem.intermediate = 8;
  CpuGroup group(problem);
  const std::vector<Batch> inputs = make_batches(problem, {256, 256}, 22);
  std::vector<Batch> first = inputs;
  group.call(first);
  group.expect_right(first);
  for (int run = 1; run < fewer_if_sanitized(100); ++run) {
    std::vector<Batch> again = inputs;
    group.call(again);
    for (std::size_t rank = 0; rank < 2; ++rank) ASSERT_EQ(again[rank].y, first[rank].y) << "run " << run;
  }
}

TEST(Cases, RACE9_two_calls_at_a_time_on_one_layer_take_turns) {
  const Problem problem = problem_of(2, 4, 2, 32);
  const auto experts = std::make_shared<DenseExperts>(problem, 1);
  CpuWorld world(problem, experts);
  std::vector<Batch> batches = make_batches(problem, {32, 7, 20, 31}, 23);
  world.each_rank([&](std::size_t rank) {
    const auto forward = [&](Batch& batch) { world.layer(rank).forward(CpuWorld::input_of(batch, 32), 20.0); };
    std::jthread other([&] { forward(batches[2 + rank]); });
    forward(batches[rank]);
  });
  for (std::size_t i = 0; i < 4; ++i) {
    const auto wanted = reference::layer(problem, *experts, batches[i].x_view(), batches[i].routing());
    EXPECT_LE(error_in_bars(problem, batches[i], wanted), 1.0) << i;
  }
}

TEST(Cases, DET1_DET2_DET6_the_same_input_gives_the_same_bits) {
  struct Shape { int ranks, experts, top_k; };
  for (const Shape shape : {Shape{1, 1, 1}, Shape{1, 2, 1}, Shape{1, 4, 1}, Shape{2, 2, 1}, Shape{2, 4, 1}, Shape{2, 8, 1},
                            Shape{2, 8, 4}}) {
    const Problem problem = problem_of(shape.ranks, shape.experts, shape.top_k, 16);
    CpuGroup group(problem);
    const std::vector<Batch> inputs =
        make_batches(problem, std::vector<std::int64_t>(static_cast<std::size_t>(shape.ranks), 16), 24);
    std::vector<Batch> first = inputs;
    group.call(first);
    group.expect_right(first);
    for (int run = 0; run < fewer_if_sanitized(50); ++run) {
      std::vector<Batch> again = inputs;
      group.call(again);
      ASSERT_EQ(again[0].y, first[0].y) << "run " << run;
    }
  }
}

TEST(Cases, DET7_every_batch_size_up_to_33_and_around_powers_of_two) {
  std::vector<std::int64_t> counts;
  for (std::int64_t tokens = 1; tokens <= 33; ++tokens) counts.push_back(tokens);
  for (std::int64_t power = 64; power <= 1024; power *= 2) counts.insert(counts.end(), {power - 1, power, power + 1});
  const Problem problem = problem_of(2, 8, 2, 1025);
  CpuGroup group(problem);
  for (const std::int64_t tokens : counts) group.check(make_batches(problem, {tokens, tokens}, 25));
}

// ---- EXIT and MEM: life cycle and memory --------------------------------------------------------------------------

/// Number of memory mappings of this process.
std::size_t num_mappings() {
  std::ifstream maps("/proc/self/maps");
  std::size_t lines = 0;
  for (std::string line; std::getline(maps, line);) ++lines;
  return lines;
}

TEST(Cases, EXIT3_creating_and_destroying_leaves_nothing_behind) {
  const Problem problem = problem_of(2, 8, 2, 2000);
  const auto experts = std::make_shared<DenseExperts>(problem, 1);
  const auto cycle = [&] {
    CpuWorld world(problem, experts);
    Batch batch = make_batch(problem, 3, 1);
    Batch none = make_batch(problem, 0, 1);
    world.call({&batch, &none}, 2000);
    EXPECT_EQ(world.message(0), "");
  };
  for (int i = 0; i < 5; ++i) cycle();
  const std::size_t before = num_mappings();
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 20; ++i) cycle();
  EXPECT_LE(num_mappings(), before + 10);  // thread stacks come and go
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

TEST(Cases, MEM1_layouts_say_what_is_mapped) {
  const Problem problem = problem_of(2, 8, 2, 2000);
  const Geometry geometry = plan_geometry(problem, cpu::engine_traits());
  CpuWorld world(problem, std::make_shared<DenseExperts>(problem, 1));
  EXPECT_EQ(world.heap().layout().total_bytes, make_heap_layout(geometry).total_bytes);
  EXPECT_EQ(world.context(0).local_bytes(), make_local_layout(geometry, Roster{}).total_bytes);
  // The last byte of a heap is there.
  const std::size_t last = world.heap().layout().total_bytes - 1;
  for (int rank = 0; rank < 2; ++rank) {
    world.heap().bases()[rank][last] = 1;
    EXPECT_EQ(world.heap().bases()[rank][last], 1);
  }
}

TEST(Cases, MEM3_a_thousand_calls_leave_the_heap_of_the_process_as_it_was) {
  if (kSanitized) GTEST_SKIP() << "sanitizers replace the allocator whose state this reads";
  const Problem problem = problem_of(2, 4, 2, 16);
  CpuWorld world(problem, std::make_shared<DenseExperts>(problem, 1));
  std::vector<Batch> batches = make_batches(problem, {16, 5}, 26);
  const auto run = [&](int calls) {
    world.each_rank([&](std::size_t rank) {
      for (int call = 0; call < calls; ++call) world.forward(rank, batches[rank], 16);
    });
  };
  run(100);
  const auto before = mallinfo2().uordblks;
  run(1000);
  EXPECT_NEAR(static_cast<double>(mallinfo2().uordblks), static_cast<double>(before), 16384.0);
}

}  // namespace
}  // namespace flashmoe::test
