// Reported failures of memory nobody wrote and of repeated calls: see cases.hpp.
#pragma once

#include "conformance/cases.hpp"

namespace flashmoe::test {

template <class Backend>
class RepeatCases : public Cases<Backend> {};
TYPED_TEST_SUITE_P(RepeatCases);

// ---- UNINIT: memory nobody wrote ----------------------------------------------------------------------------------

TYPED_TEST_P(RepeatCases, UNINIT1_idle_experts_on_poisoned_memory) {
  const Problem problem = problem_of(2, 8, 2, 60);
  std::vector<Batch> batches = make_batches(problem, {60, 60}, 18);
  for (Batch& batch : batches) {
    for (std::int32_t& id : batch.topk_ids) id = id % 5;  // experts 5, 6 and 7 idle
  }
  Group<TypeParam>(problem).check(batches);
}

TYPED_TEST_P(RepeatCases, UNINIT3_ragged_experts_on_clean_and_on_poisoned_memory) {
  for (const DType dtype : TypeParam::dtypes()) {
    Problem problem = problem_of(2, 6, 1, 65);
    problem.dtype = dtype;
    std::vector<Batch> batches = make_batches(problem, {65, 0}, 19);
    for (std::size_t token = 0; token < 65; ++token) batches[0].topk_ids[token] = token < 1 ? 3 : token < 32 ? 4 : 5;
    std::vector<Batch> clean = batches;
    typename TypeParam::World fresh(problem, std::make_shared<DenseExperts>(problem, 1));
    fresh.call({&clean[0], &clean[1]}, 65);
    Group<TypeParam> group(problem);
    group.call(batches);
    EXPECT_EQ(batches[0].y, clean[0].y) << to_string(dtype);
  }
}

TYPED_TEST_P(RepeatCases, UNINIT4_an_expert_with_tiny_weights) {
  Problem problem = problem_of(2, 4, 1, 10);
  problem.activation = Activation::silu;
  class TinyExperts : public ExpertSource {
   public:
    explicit TinyExperts(const Problem& p)
        : up_(stored(p, std::int64_t{p.up_columns()} * p.hidden)),
          down_(stored(p, std::int64_t{p.hidden} * p.intermediate)) {}
    std::shared_ptr<const ExpertParameters> expert(int) const override {
      return std::make_shared<ExpertParameters>(ExpertParameters{up_.data(), down_.data(), nullptr, nullptr});
    }

   private:
    static std::vector<char> stored(const Problem& p, std::int64_t count) {
      return random_elements(p.dtype, count, 1, 2, Values::real, 1e-23);
    }
    std::vector<char> up_, down_;
  };
  typename TypeParam::World world(problem, std::make_shared<TinyExperts>(problem));
  std::vector<Batch> batches = make_batches(problem, {10, 10}, 20);
  world.call({&batches[0], &batches[1]}, 10);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    ASSERT_EQ(world.message(rank), "");
    for (const double value : batches[rank].output(problem)) EXPECT_LT(std::abs(value), 1e-30);
  }
}

// ---- RACE and DET: repeated calls ---------------------------------------------------------------------------------

TYPED_TEST_P(RepeatCases, RACE5_two_thousand_rounds_without_a_barrier_are_bitwise_equal) {
  Problem problem = problem_of(2, 4, 2, 2000);
  problem.result_form = ResultForm::per_route;
  const auto experts = std::make_shared<DenseExperts>(problem, 1);
  typename TypeParam::World world(problem, experts);
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

TYPED_TEST_P(RepeatCases, RACE6_many_small_experts_are_bitwise_equal) {
  Problem problem = problem_of(2, 384, 6, 256);
  problem.hidden = 16;
  problem.intermediate = 8;
  Group<TypeParam> group(problem);
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

TYPED_TEST_P(RepeatCases, RACE9_two_calls_at_a_time_on_one_layer_take_turns) {
  const Problem problem = problem_of(2, 4, 2, 32);
  const auto experts = std::make_shared<DenseExperts>(problem, 1);
  typename TypeParam::World world(problem, experts);
  std::vector<Batch> batches = make_batches(problem, {32, 7, 20, 31}, 23);
  world.each_rank([&](std::size_t rank) {
    const auto forward = [&](Batch& batch) { world.forward(rank, batch, 32); };
    std::jthread other([&] { forward(batches[2 + rank]); });
    forward(batches[rank]);
  });
  for (std::size_t i = 0; i < 4; ++i) {
    const auto wanted = reference::layer(problem, *experts, batches[i].x_view(), batches[i].routing());
    EXPECT_LE(error_in_bars(problem, batches[i], wanted), 1.0) << i;
  }
}

TYPED_TEST_P(RepeatCases, DET1_DET2_DET6_the_same_input_gives_the_same_bits) {
  struct Shape { int ranks, experts, top_k; };
  for (const Shape shape : {Shape{1, 1, 1}, Shape{1, 2, 1}, Shape{1, 4, 1}, Shape{2, 2, 1}, Shape{2, 4, 1},
                            Shape{2, 8, 1}, Shape{2, 8, 4}}) {
    const Problem problem = problem_of(shape.ranks, shape.experts, shape.top_k, 16);
    Group<TypeParam> group(problem);
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

TYPED_TEST_P(RepeatCases, DET7_every_batch_size_up_to_33_and_around_powers_of_two) {
  std::vector<std::int64_t> counts;
  for (std::int64_t tokens = 1; tokens <= 33; ++tokens) counts.push_back(tokens);
  for (std::int64_t power = 64; power <= 1024; power *= 2) counts.insert(counts.end(), {power - 1, power, power + 1});
  const Problem problem = problem_of(2, 8, 2, 1025);
  Group<TypeParam> group(problem);
  for (const std::int64_t tokens : counts) group.check(make_batches(problem, {tokens, tokens}, 25));
}

REGISTER_TYPED_TEST_SUITE_P(RepeatCases, UNINIT1_idle_experts_on_poisoned_memory,
    UNINIT3_ragged_experts_on_clean_and_on_poisoned_memory,
    UNINIT4_an_expert_with_tiny_weights,
    RACE5_two_thousand_rounds_without_a_barrier_are_bitwise_equal,
    RACE6_many_small_experts_are_bitwise_equal,
    RACE9_two_calls_at_a_time_on_one_layer_take_turns,
    DET1_DET2_DET6_the_same_input_gives_the_same_bits,
    DET7_every_batch_size_up_to_33_and_around_powers_of_two);

}  // namespace flashmoe::test
