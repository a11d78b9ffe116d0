// What every backend's layer must do, as one typed suite. A backend is a struct with
//   using World        what Group needs, and payload_bytes(rank): bytes of rows a rank sent to others in the last call
//   static dtypes()    the types its engine takes
//   static why_not()   a sentence where the machine cannot run it: its tests are then skipped; else empty
// Every call starts with poisoned outputs and poisoned memory.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <set>
#include <string>
#include <vector>

#include "conformance/group.hpp"
#include "support/dice.hpp"
#include "support/sanitized.hpp"

namespace flashmoe::test {

template <class Backend>
class LayerSuite : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = Backend::why_not(); !reason.empty()) GTEST_SKIP() << reason;
  }

  static Problem small_problem(int num_ranks) {
    return {.num_ranks = num_ranks, .hidden = 72, .intermediate = 40, .num_experts = 24, .top_k = 3, .max_tokens = 150,
            .wave_tokens = 64};
  }
};
TYPED_TEST_SUITE_P(LayerSuite);

inline int num_random_layers() {
  const char* value = std::getenv("FLASHMOE_CASES");
  return value != nullptr ? std::atoi(value) : fewer_if_sanitized(150);
}

template <class Backend>
Problem draw_problem(Dice& dice) {
  const auto dtypes = Backend::dtypes();
  Problem p;
  p.num_ranks = dice.between(1, 8);
  p.num_experts = p.num_ranks * dice.pick({1, 2, 3, 5, 8});
  p.top_k = std::min(dice.pick({1, 2, 3, 4, 8}), p.num_experts);
  p.hidden = 8 * dice.between(1, 24);
  p.intermediate = 8 * dice.between(1, 20);
  p.dtype = dtypes[static_cast<std::size_t>(dice.below(static_cast<int>(dtypes.size())))];
  p.gated = !dice.one_in(3);
  p.activation = p.gated ? dice.pick({Activation::silu, Activation::gelu_erf, Activation::gelu_tanh, Activation::relu,
                                      Activation::swiglu_clamped})
                         : dice.pick({Activation::silu, Activation::relu_squared, Activation::gelu_tanh,
                                      Activation::identity});
  p.up_bias = dice.one_in(3);
  p.down_bias = dice.one_in(3);
  p.weight_on_input = dice.one_in(5);
  p.max_tokens = dice.pick({1, 5, 30, 70, 160});
  p.wire_form = dice.pick({WireForm::automatic, WireForm::counted, WireForm::lined});
  p.result_form = p.wire_form == WireForm::lined ? ResultForm::per_route
                                                 : dice.pick({ResultForm::automatic, ResultForm::per_route,
                                                              ResultForm::pre_reduced});
  p.wave_tokens = dice.pick({0, 1, 17, 64, 70});
  p.wave_ring = dice.pick({0, 1, 2, 3});
  return p;
}

TYPED_TEST_P(LayerSuite, random_layers_agree_with_the_reference) {
  for (int index = 0; index < num_random_layers() && !this->HasFailure(); ++index) {
    Dice dice(static_cast<std::uint64_t>(index));
    const Problem problem = draw_problem<TypeParam>(dice);
    Group<TypeParam> group(problem, static_cast<std::uint64_t>(index));
    for (int call = 0; call < 2; ++call) {
      std::vector<std::int64_t> tokens;
      for (int rank = 0; rank < problem.num_ranks; ++rank) {
        tokens.push_back(dice.one_in(4) ? 0 : dice.between(0, static_cast<int>(problem.max_tokens)));
      }
      const Routing routing = dice.pick({Routing::distinct, Routing::any, Routing::any, Routing::all_to_one,
                                         Routing::last_rank, Routing::masked});
      group.check(make_batches(problem, tokens, static_cast<std::uint64_t>(index * 2 + call), routing));
    }
  }
}

TYPED_TEST_P(LayerSuite, every_activation_is_right_gated_and_plain) {
  for (const Activation activation : {Activation::silu, Activation::gelu_erf, Activation::gelu_tanh, Activation::relu,
                                      Activation::relu_squared, Activation::identity, Activation::swiglu_clamped}) {
    for (const bool gated : {true, false}) {
      if (activation == Activation::swiglu_clamped && !gated) continue;
      Problem problem = this->small_problem(2);
      problem.activation = activation;
      problem.gated = gated;
      problem.swiglu_limit = 0.7;  // so that values are clamped
      Group<TypeParam>(problem).check(make_batches(problem, {40, 21}, 5));
    }
  }
}

TYPED_TEST_P(LayerSuite, biases_and_weights_on_input_are_right_in_every_form) {
  for (const WireForm wire : {WireForm::counted, WireForm::lined}) {
    for (const ResultForm result : {ResultForm::per_route, ResultForm::pre_reduced}) {
      if (wire == WireForm::lined && result == ResultForm::pre_reduced) continue;
      for (const DType dtype : TypeParam::dtypes()) {
        Problem problem = this->small_problem(3);
        problem.dtype = dtype;
        problem.wire_form = wire;
        problem.result_form = result;
        problem.up_bias = problem.down_bias = problem.weight_on_input = true;
        Group<TypeParam>(problem).check(make_batches(problem, {70, 0, 33}, 6, Routing::any));
      }
    }
  }
}

/// A problem whose results are exact in every dtype when all values are small integers: sums stay below 2^8.
inline Problem exact_problem(int num_ranks) {
  return {.num_ranks = num_ranks, .hidden = 8, .intermediate = 8, .num_experts = 8, .top_k = 2, .max_tokens = 140,
          .activation = Activation::relu, .gated = false};
}

TYPED_TEST_P(LayerSuite, integers_give_the_same_bits_for_all_rank_counts_forms_and_waves) {
  for (const DType dtype : TypeParam::dtypes()) {
    Problem one = exact_problem(1);
    one.dtype = dtype;
    const Batch all = make_batch(one, 140, 8, Routing::any, Values::small_integers);
    Batch wanted = all;
    {
      std::vector<Batch> batches{all};
      Group<TypeParam> group(one, 3, Values::small_integers);
      group.call(batches);
      wanted = batches[0];
      EXPECT_EQ(wanted.output(one), reference::layer(one, group.experts(), wanted.x_view(), wanted.routing()));
    }
    for (const int num_ranks : {2, 4, 8}) {
      for (const WireForm wire : {WireForm::counted, WireForm::lined}) {
        for (const ResultForm result : {ResultForm::per_route, ResultForm::pre_reduced}) {
          if (wire == WireForm::lined && result == ResultForm::pre_reduced) continue;
          Problem problem = exact_problem(num_ranks);
          problem.dtype = dtype;
          problem.wire_form = wire;
          problem.result_form = result;
          problem.wave_tokens = 16 + num_ranks;
          std::vector<Batch> batches;
          for (int rank = 0; rank < num_ranks; ++rank) {
            batches.push_back(slice(one, all, 140 * rank / num_ranks, 140 * (rank + 1) / num_ranks));
          }
          Group<TypeParam> group(problem, 3, Values::small_integers);
          group.call(batches);
          EXPECT_EQ(join(batches).y, wanted.y) << to_string(problem);
        }
      }
    }
  }
}

TYPED_TEST_P(LayerSuite, real_results_do_not_depend_on_rank_count_form_or_wave) {
  Problem one = this->small_problem(1);
  const Batch all = make_batch(one, 120, 9);
  std::vector<Batch> wanted{all};
  Group<TypeParam>(one, 2).call(wanted);
  for (const int num_ranks : {2, 3, 8}) {
    for (const WireForm wire : {WireForm::counted, WireForm::lined}) {
      Problem problem = this->small_problem(num_ranks);
      problem.wire_form = wire;
      problem.result_form = ResultForm::per_route;
      problem.wave_tokens = 7;
      std::vector<Batch> batches;
      for (int rank = 0; rank < num_ranks; ++rank) {
        batches.push_back(slice(one, all, 120 * rank / num_ranks, 120 * (rank + 1) / num_ranks));
      }
      Group<TypeParam>(problem, 2).call(batches);
      EXPECT_EQ(join(batches).y, wanted[0].y) << to_string(problem);
    }
  }
}

TYPED_TEST_P(LayerSuite, a_row_does_not_depend_on_its_place_or_on_other_tokens) {
  for (const DType dtype : TypeParam::dtypes()) {
    Problem problem = this->small_problem(2);
    problem.dtype = dtype;
    problem.result_form = ResultForm::per_route;
    Group<TypeParam> group(problem);
    const Batch all = make_batch(problem, 150, 10, Routing::all_to_one);  // all tokens share their tiles
    std::vector<Batch> together{all, make_batch(problem, 0, 1)};
    group.call(together);
    for (const std::int64_t begin : {0, 1, 37, 100}) {
      for (const std::int64_t size : {1, 3, 33}) {
        std::vector<Batch> apart{make_batch(problem, 5, 11), slice(problem, all, begin, begin + size)};
        group.call(apart);
        EXPECT_EQ(apart[1].y, slice(problem, together[0], begin, begin + size).y)
            << to_string(dtype) << ": tokens " << begin << " to " << begin + size;
      }
    }
  }
}

TYPED_TEST_P(LayerSuite, runs_are_bitwise_equal) {
  for (const ResultForm form : {ResultForm::per_route, ResultForm::pre_reduced}) {
    Problem problem = this->small_problem(4);
    problem.wire_form = WireForm::counted;
    problem.result_form = form;
    Group<TypeParam> group(problem);
    const std::vector<Batch> inputs = make_batches(problem, {150, 0, 1, 90}, 12, Routing::any);
    std::vector<Batch> first = inputs;
    group.call(first);
    for (int run = 0; run < 20; ++run) {
      std::vector<Batch> again = inputs;
      group.call(again);
      for (std::size_t rank = 0; rank < 4; ++rank) ASSERT_EQ(again[rank].y, first[rank].y) << "rank " << rank;
    }
  }
}

TYPED_TEST_P(LayerSuite, a_token_without_routes_gets_exact_zeros) {
  for (const WireForm wire : {WireForm::counted, WireForm::lined}) {
    Problem problem = this->small_problem(2);
    problem.wire_form = wire;
    problem.up_bias = problem.down_bias = true;
    Group<TypeParam> group(problem);
    std::vector<Batch> batches = make_batches(problem, {20, 20}, 13);
    for (int choice = 0; choice < problem.top_k; ++choice) batches[1].topk_ids[static_cast<std::size_t>(7 * problem.top_k + choice)] = -1;
    group.call(batches);
    group.expect_right(batches);
    const Batch masked = slice(problem, batches[1], 7, 8);
    EXPECT_EQ(masked.y, std::vector<char>(masked.y.size(), 0));
  }
}

TYPED_TEST_P(LayerSuite, rows_of_nan_stay_alone) {
  for (const DType dtype : TypeParam::dtypes()) {
    for (const WireForm wire : {WireForm::counted, WireForm::lined}) {
      Problem problem = this->small_problem(2);
      problem.dtype = dtype;
      problem.wire_form = wire;
      Group<TypeParam> group(problem);
      const std::vector<Batch> clean = make_batches(problem, {60, 60}, 14, Routing::all_to_one);
      std::vector<Batch> wanted = clean;
      group.call(wanted);
      // Every third row of NaN, half of them masked as padding is, half routed like the others.
      std::vector<Batch> dirty = clean;
      const std::size_t row = static_cast<std::size_t>(problem.hidden) * dtype_bytes(dtype);
      const auto k = static_cast<std::size_t>(problem.top_k);
      for (std::size_t token = 0; token < 60; token += 3) {
        std::fill_n(dirty[0].x.begin() + static_cast<std::ptrdiff_t>(token * row), row, static_cast<char>(0xff));
        if (token % 2 == 0) std::fill_n(dirty[0].topk_ids.begin() + static_cast<std::ptrdiff_t>(token * k), k, -1);
      }
      group.call(dirty);
      EXPECT_EQ(dirty[1].y, wanted[1].y);
      for (std::int64_t token = 0; token < 60; ++token) {
        const Batch got = slice(problem, dirty[0], token, token + 1);
        if (token % 3 != 0) {
          EXPECT_EQ(got.y, slice(problem, wanted[0], token, token + 1).y) << "token " << token;
        } else if (token % 2 == 0) {
          EXPECT_EQ(got.y, std::vector<char>(row, 0)) << "token " << token;
        } else {
          EXPECT_TRUE(std::isnan(got.output(problem)[0])) << "token " << token;
        }
      }
    }
  }
}

TYPED_TEST_P(LayerSuite, inputs_are_left_alone) {
  for (const WireForm wire : {WireForm::counted, WireForm::lined}) {
    Problem problem = this->small_problem(2);
    problem.wire_form = wire;
    std::vector<Batch> batches = make_batches(problem, {100, 50}, 15, Routing::any);
    const std::vector<Batch> before = batches;
    Group<TypeParam>(problem).call(batches);
    for (std::size_t rank = 0; rank < 2; ++rank) {
      EXPECT_EQ(batches[rank].x, before[rank].x);
      EXPECT_EQ(batches[rank].topk_ids, before[rank].topk_ids);
      EXPECT_EQ(batches[rank].topk_weights, before[rank].topk_weights);
    }
  }
}

/// Rows that rank `rank` must send, counted from the routing alone: a token once per other rank that has one of its
/// experts, and one result per route, or per (token, expert rank), that another rank's token sent here.
inline std::uint64_t fewest_rows(const Problem& problem, const std::vector<Batch>& batches, int rank, bool pre_reduced) {
  std::uint64_t rows = 0;
  for (std::size_t source = 0; source < batches.size(); ++source) {
    for (std::int64_t token = 0; token < batches[source].num_tokens; ++token) {
      std::multiset<int> ranks;
      for (int choice = 0; choice < problem.top_k; ++choice) {
        const std::int32_t id = batches[source].topk_ids[static_cast<std::size_t>(token * problem.top_k + choice)];
        if (id >= 0) ranks.insert(id / problem.num_local_experts());
      }
      if (static_cast<int>(source) == rank) {
        rows += std::set<int>(ranks.begin(), ranks.end()).size() - (ranks.count(rank) > 0 ? 1 : 0);
      } else {
        const std::size_t routes = ranks.count(rank);
        rows += pre_reduced ? (routes > 0 ? 1 : 0) : routes;
      }
    }
  }
  return rows;
}

TYPED_TEST_P(LayerSuite, no_row_crosses_more_often_than_it_must) {
  for (const WireForm wire : {WireForm::counted, WireForm::lined}) {
    for (const ResultForm result : {ResultForm::per_route, ResultForm::pre_reduced}) {
      if (wire == WireForm::lined && result == ResultForm::pre_reduced) continue;
      Problem problem = this->small_problem(4);
      problem.wire_form = wire;
      problem.result_form = result;
      Group<TypeParam> group(problem);
      for (const Routing routing : {Routing::distinct, Routing::any, Routing::all_to_one, Routing::masked}) {
        std::vector<Batch> batches = make_batches(problem, {150, 0, 77, 13}, 16, routing);
        group.call(batches);
        const std::uint64_t row = static_cast<std::uint64_t>(problem.hidden) * dtype_bytes(problem.dtype);
        for (int rank = 0; rank < 4; ++rank) {
          EXPECT_EQ(group.world().payload_bytes(static_cast<std::size_t>(rank)),
                    row * fewest_rows(problem, batches, rank, result == ResultForm::pre_reduced))
              << "rank " << rank << " of " << to_string(problem);
        }
      }
    }
  }
}

REGISTER_TYPED_TEST_SUITE_P(LayerSuite, random_layers_agree_with_the_reference, every_activation_is_right_gated_and_plain,
                            biases_and_weights_on_input_are_right_in_every_form,
                            integers_give_the_same_bits_for_all_rank_counts_forms_and_waves,
                            real_results_do_not_depend_on_rank_count_form_or_wave,
                            a_row_does_not_depend_on_its_place_or_on_other_tokens, runs_are_bitwise_equal,
                            a_token_without_routes_gets_exact_zeros, rows_of_nan_stay_alone, inputs_are_left_alone,
                            no_row_crosses_more_often_than_it_must);

}  // namespace flashmoe::test
