// Reported failures of sizes: see cases.hpp.
#pragma once

#include <gmock/gmock.h>

#include "conformance/cases.hpp"

namespace flashmoe::test {

template <class Backend>
class ShapeCases : public Cases<Backend> {};
TYPED_TEST_SUITE_P(ShapeCases);

// ---- CAP: capacity ------------------------------------------------------------------------------------------------

TYPED_TEST_P(ShapeCases, CAP2_small_buffers_filled_to_the_brim) {
  for (const std::int64_t tokens : {1, 2, 8, 32, 64, 255, 256}) {
    for (const WireForm wire : {WireForm::counted, WireForm::lined}) {
      Problem problem = problem_of(2, 8, 2, tokens);
      problem.wire_form = wire;
      Group<TypeParam>(problem).check(make_batches(problem, {tokens, tokens}, 8, Routing::last_rank));
    }
  }
}

TYPED_TEST_P(ShapeCases, CAP3_few_rows_of_a_later_expert_behind_many_of_an_earlier_one) {
  const Problem problem = problem_of(2, 8, 1, 305);
  std::vector<Batch> batches = make_batches(problem, {305, 0}, 9);
  for (std::size_t token = 0; token < 305; ++token) batches[0].topk_ids[token] = token < 300 ? 0 : 3;
  Group<TypeParam> group(problem);
  group.call(batches);
  group.expect_right(batches);
  const auto wanted = reference::layer(problem, group.experts(), batches[0].x_view(), batches[0].routing());
  const std::vector<double> last(wanted.end() - 5 * problem.hidden, wanted.end());
  EXPECT_LE(error_in_bars(problem, slice(problem, batches[0], 300, 305), last), 1.0);
}

TYPED_TEST_P(ShapeCases, CAP4_rows_around_65536_on_one_rank) {
  for (const std::int64_t tokens : {65535, 65536, 65537}) {
    Problem problem = problem_of(2, 4, 1, tokens);
    problem.hidden = 128;
    problem.intermediate = 8;
    problem.activation = Activation::relu;
    problem.gated = false;
    Group<TypeParam>(problem).check(make_batches(problem, {tokens, 0}, 10, Routing::last_rank));
    if (kSanitized) break;
  }
}

TYPED_TEST_P(ShapeCases, CAP6_eight_layers_share_one_heap) {
  const Problem problem = problem_of(2, 8, 2, 128);
  std::vector<std::shared_ptr<const ExpertSource>> layers;
  for (std::uint64_t i = 0; i < 8; ++i) layers.push_back(std::make_shared<DenseExperts>(problem, i));
  typename TypeParam::World world(problem, layers);
  for (std::size_t layer = 0; layer < 8; ++layer) {
    std::vector<Batch> batches = make_batches(problem, {128, 128}, layer);
    world.each_rank([&](std::size_t rank) { world.forward(rank, batches[rank], 128, 20.0, layer); });
    for (std::size_t rank = 0; rank < 2; ++rank) {
      ASSERT_EQ(world.message(rank), "");
      const auto wanted = reference::layer(problem, *layers[layer], batches[rank].x_view(), batches[rank].routing());
      EXPECT_LE(error_in_bars(problem, batches[rank], wanted), 1.0);
    }
  }
  EXPECT_EQ(world.calls_finished(0), 8u);  // one heap counted all of them
}

TYPED_TEST_P(ShapeCases, CAP9_all_rows_to_one_expert) {
  const Problem problem = problem_of(4, 64, 1, 4096);
  Group<TypeParam>(problem).check(make_batches(problem, {4096, 4096, 0, 1}, 11, Routing::all_to_one));
}

// ---- ALIGN: sizes that are no multiple of a tile ------------------------------------------------------------------

TYPED_TEST_P(ShapeCases, ALIGN1_ALIGN10_narrow_experts_gated_on_one_rank_and_on_two) {
  for (const int intermediate : {88, 176, 352, 704, 1856}) {
    Problem two = problem_of(2, 8, 2, 40);
    two.intermediate = intermediate;
    two.result_form = ResultForm::per_route;
    Problem one = two;
    one.num_ranks = 1;
    std::vector<Batch> whole = make_batches(one, {40}, 30);
    std::vector<Batch> parts{slice(one, whole[0], 0, 23), slice(one, whole[0], 23, 40)};
    Group<TypeParam> single(one);
    single.call(whole);
    single.expect_right(whole);
    Group<TypeParam>(two).call(parts);
    EXPECT_EQ(join(parts).y, whole[0].y) << intermediate;
  }
}

TYPED_TEST_P(ShapeCases, ALIGN3_ALIGN4_the_error_of_2688_by_1856_is_flat_over_the_columns) {
  Problem problem = problem_of(2, 8, 2, 1);
  problem.hidden = 2688;
  problem.intermediate = 1856;
  problem.activation = Activation::relu_squared;
  problem.gated = false;
  std::vector<Batch> batches = make_batches(problem, {1, 1}, 31);
  Group<TypeParam> group(problem);
  group.call(batches);
  group.expect_right(batches);
  const auto wanted = reference::layer(problem, group.experts(), batches[0].x_view(), batches[0].routing());
  const std::vector<double> got = batches[0].output(problem);
  double most = 0;
  double mean = 0;
  const std::size_t num_blocks = wanted.size() / 32;
  for (std::size_t block = 0; block < num_blocks; ++block) {
    double worst = 0;
    for (std::size_t i = block * 32; i < block * 32 + 32; ++i) worst = std::max(worst, std::abs(got[i] - wanted[i]));
    most = std::max(most, worst);
    mean += worst / static_cast<double>(num_blocks);
  }
  EXPECT_LE(most, 6.0 * mean);
}

TYPED_TEST_P(ShapeCases, ALIGN8_hidden_sizes_that_are_no_multiple_of_128) {
  for (const int hidden : {64, 72, 192, 2880, 3584}) {
    for (const WireForm wire : {WireForm::counted, WireForm::lined}) {
      Problem problem = problem_of(2, 4, 2, 30);
      problem.hidden = hidden;
      problem.wire_form = wire;
      Group<TypeParam>(problem).check(make_batches(problem, {30, 17}, 32));
    }
  }
}

TYPED_TEST_P(ShapeCases, ALIGN9_ALIGN11_rows_of_an_expert_around_tile_sizes) {
  const std::vector<std::int64_t> rows{1, 8, 15, 16, 17, 32, 63, 64, 65, 127, 128, 129};
  Problem problem = problem_of(2, static_cast<int>(rows.size()), 1, 665);
  std::vector<Batch> batches = make_batches(problem, {665, 0}, 33);
  std::size_t token = 0;
  for (std::size_t expert = 0; expert < rows.size(); ++expert) {
    for (std::int64_t row = 0; row < rows[expert]; ++row) {
      batches[0].topk_ids[token++] = static_cast<std::int32_t>(expert);
    }
  }
  ASSERT_EQ(token, 665u);
  Group<TypeParam>(problem).check(batches);
}

// ---- ETOPK: expert counts -----------------------------------------------------------------------------------------

TYPED_TEST_P(ShapeCases, ETOPK1_uneven_splits_are_refused_with_the_padding_to_use) {
  EXPECT_THAT([] { validate(problem_of(3, 256, 8, 8)); },
              testing::ThrowsMessage<InvalidArgument>(testing::HasSubstr("pad the layer to 258 experts")));
  EXPECT_THAT([] { validate(problem_of(4, 10, 2, 8)); },
              testing::ThrowsMessage<InvalidArgument>(testing::HasSubstr("pad the layer to 12 experts")));
}

TYPED_TEST_P(ShapeCases, ETOPK2_seven_experts_padded_to_eight_on_two_ranks) {
  Problem seven = problem_of(1, 7, 2, 40);
  seven.result_form = ResultForm::per_route;
  std::vector<Batch> wanted = make_batches(seven, {40}, 15);
  Problem eight = seven;
  eight.num_ranks = 2;
  eight.num_experts = 8;
  std::vector<Batch> got{slice(seven, wanted[0], 0, 25), slice(seven, wanted[0], 25, 40)};
  Group<TypeParam>(seven).call(wanted);
  Group<TypeParam>(eight).call(got);
  EXPECT_EQ(join(got).y, wanted[0].y);
}

TYPED_TEST_P(ShapeCases, ETOPK3_ETOPK4_ETOPK8_any_number_of_experts) {
  struct Shape { int ranks, experts; };
  for (const Shape shape : {Shape{4, 8}, Shape{4, 64}, Shape{4, 160}, Shape{4, 256}, Shape{4, 384}, Shape{4, 512},
                            Shape{4, 896}, Shape{2, 1024}, Shape{5, 1025}, Shape{1, 1025}, Shape{8, 2048}, Shape{3, 51},
                            Shape{2, 32}, Shape{2, 34}, Shape{2, 66}, Shape{2, 2}}) {
    Problem problem = problem_of(shape.ranks, shape.experts, std::min(4, shape.experts), 64);
    problem.hidden = 128;
    problem.intermediate = 8;
    for (const WireForm wire : {WireForm::counted, WireForm::lined}) {
      problem.wire_form = wire;
      Group<TypeParam>(problem).check(
          make_batches(problem, std::vector<std::int64_t>(static_cast<std::size_t>(shape.ranks), 64), 16));
    }
    if (kSanitized && shape.experts > 500) break;
  }
}

TYPED_TEST_P(ShapeCases, ETOPK7_top_k_of_six_and_of_all_experts) {
  for (const int top_k : {6, 32}) {
    for (const ResultForm form : {ResultForm::per_route, ResultForm::pre_reduced}) {
      Problem problem = problem_of(4, 32, top_k, 50);
      problem.result_form = form;
      Group<TypeParam>(problem).check(make_batches(problem, {50, 1, 0, 33}, 17));
    }
  }
}

REGISTER_TYPED_TEST_SUITE_P(ShapeCases, CAP2_small_buffers_filled_to_the_brim,
    CAP3_few_rows_of_a_later_expert_behind_many_of_an_earlier_one,
    CAP4_rows_around_65536_on_one_rank,
    CAP6_eight_layers_share_one_heap,
    CAP9_all_rows_to_one_expert,
    ALIGN1_ALIGN10_narrow_experts_gated_on_one_rank_and_on_two,
    ALIGN3_ALIGN4_the_error_of_2688_by_1856_is_flat_over_the_columns,
    ALIGN8_hidden_sizes_that_are_no_multiple_of_128,
    ALIGN9_ALIGN11_rows_of_an_expert_around_tile_sizes,
    ETOPK1_uneven_splits_are_refused_with_the_padding_to_use,
    ETOPK2_seven_experts_padded_to_eight_on_two_ranks,
    ETOPK3_ETOPK4_ETOPK8_any_number_of_experts,
    ETOPK7_top_k_of_six_and_of_all_experts);

}  // namespace flashmoe::test
