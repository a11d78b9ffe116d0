// From problems to sizes and forms.
#include "planner/plan.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/heap_layout.hpp"
#include "flashmoe/error.hpp"

namespace flashmoe {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr EngineTraits kEngine{.tile = {.rows = 128, .up_columns = 128, .down_columns = 256}, .num_m_blocks = 64};

Problem qwen(std::int64_t max_tokens) {
  return {.num_ranks = 8, .hidden = 2048, .intermediate = 768, .num_experts = 128, .top_k = 8, .max_tokens = max_tokens};
}

TEST(Geometry, follows_the_problem_and_the_engine) {
  const Geometry g = plan_geometry(qwen(100), kEngine);
  EXPECT_EQ(g.num_ranks, 8);
  EXPECT_EQ(g.num_local_experts, 16);
  EXPECT_EQ(g.num_experts(), 128);
  EXPECT_EQ(g.row_bytes(), 4096);
  EXPECT_EQ(g.tile, kEngine.tile);
  EXPECT_EQ(g.num_up_tiles(), 6);
  EXPECT_EQ(g.num_down_tiles(), 8);
  EXPECT_EQ(g.wave_ring, 2);
  EXPECT_EQ(plan_geometry(qwen(100), kEngine), g);
}

TEST(Waves, bring_each_expert_its_rows_where_the_batch_has_them) {
  Problem problem = qwen(8192);
  problem.result_form = ResultForm::per_route;
  EXPECT_EQ(plan_geometry(problem, kEngine).wave_tokens, 2048);  // 1024 rows an expert: 1024 * 128 / (8 * 8)
  problem.intermediate = 8192;
  EXPECT_EQ(plan_geometry(problem, kEngine).wave_tokens, 4096);  // wide experts: 2048 rows
  EXPECT_EQ(plan_geometry(qwen(8192), kEngine).wave_tokens, 1024);  // partial sums of pre_reduced results need room
  EXPECT_EQ(plan_geometry(qwen(300), kEngine).wave_tokens, 300);
  EXPECT_EQ(num_waves(plan_geometry(qwen(8192), kEngine), 8192), 8);
  EXPECT_EQ(num_waves(plan_geometry(qwen(8192), kEngine), 1025), 2);
  EXPECT_EQ(num_waves(plan_geometry(qwen(8192), kEngine), 0), 0);
}

TEST(Waves, are_as_the_problem_says_but_no_longer_than_the_batch) {
  Problem problem = qwen(8192);
  problem.wave_tokens = 100;
  problem.wave_ring = 3;
  EXPECT_EQ(plan_geometry(problem, kEngine).wave_tokens, 100);
  EXPECT_EQ(plan_geometry(problem, kEngine).wave_ring, 3);
  problem.wave_tokens = 60000;
  EXPECT_EQ(plan_geometry(problem, kEngine).wave_tokens, 8192);
}

TEST(Waves, shrink_until_the_heap_fits_its_budget) {
  Problem problem = qwen(1 << 20);
  problem.hidden = 16384;
  problem.num_experts = 2048;
  problem.result_form = ResultForm::per_route;
  const Geometry g = plan_geometry(problem, kEngine);
  EXPECT_LE(make_heap_layout(g).total_bytes, std::size_t{1536} << 20);
  EXPECT_GE(g.wave_tokens, 64);
  EXPECT_EQ(g.wave_tokens % 64, 0);
  Geometry twice = g;
  twice.wave_tokens *= 2;
  EXPECT_GT(make_heap_layout(twice).total_bytes, std::size_t{1536} << 20);  // and no further
}

TEST(Forms, few_tokens_go_as_lines_and_many_counted) {
  const Problem problem = qwen(8192);
  const Geometry g = plan_geometry(problem, kEngine);
  EXPECT_EQ(plan_call(problem, g, 0).wire_form, WireForm::lined);
  EXPECT_EQ(plan_call(problem, g, 32).wire_form, WireForm::lined);
  EXPECT_EQ(plan_call(problem, g, 33).wire_form, WireForm::counted);
  EXPECT_EQ(plan_call(problem, g, 8192).wire_form, WireForm::counted);
}

TEST(Forms, the_bound_of_lined_calls_is_bytes_of_results_and_tokens) {
  Problem narrow = qwen(8192);
  narrow.top_k = 1;
  EXPECT_EQ(plan_geometry(narrow, kEngine).lined_tokens, 32);
  Problem wide = qwen(8192);
  wide.hidden = 7168;
  EXPECT_EQ(plan_geometry(wide, kEngine).lined_tokens, 18);
  wide.hidden = 65536;
  wide.dtype = DType::fp64;
  EXPECT_EQ(plan_geometry(wide, kEngine).lined_tokens, 0);  // never
  EXPECT_EQ(plan_call(wide, plan_geometry(wide, kEngine), 1).wire_form, WireForm::counted);
}

TEST(Forms, of_few_routes_receivers_make_the_list) {
  EngineTraits engine = kEngine;
  EXPECT_EQ(plan_geometry(qwen(8192), engine).listed_tokens, 0);
  engine.listed_routes = 100;
  Problem problem = qwen(8192);  // top 8
  problem.result_form = ResultForm::per_route;
  const Geometry g = plan_geometry(problem, engine);
  EXPECT_EQ(g.listed_tokens, 12);
  EXPECT_THAT(explain_plan(problem, g, plan_call(problem, g, 8192)),
              HasSubstr("a rank with up to 12 tokens sends ids, from which receivers make their lists"));
  Problem small_waves = qwen(8192);
  small_waves.wave_tokens = 5;
  EXPECT_EQ(plan_geometry(small_waves, engine).listed_tokens, 5) << "one wave at most";
}

TEST(Forms, fixed_ones_are_kept) {
  Problem problem = qwen(1000);
  problem.wire_form = WireForm::lined;
  EXPECT_EQ(plan_call(problem, plan_geometry(problem, kEngine), 1000).wire_form, WireForm::lined);
  problem.wire_form = WireForm::counted;
  EXPECT_EQ(plan_call(problem, plan_geometry(problem, kEngine), 1).wire_form, WireForm::counted);
  EXPECT_EQ(plan_geometry(problem, kEngine).lined_tokens, 0);
  problem.result_form = ResultForm::pre_reduced;
  const CallPlan plan = plan_call(problem, plan_geometry(problem, kEngine), 1000);
  EXPECT_EQ(plan.result_form, ResultForm::pre_reduced);
  EXPECT_TRUE(plan.list_weights);
  problem.result_form = ResultForm::per_route;
  EXPECT_EQ(plan_call(problem, plan_geometry(problem, kEngine), 1000).result_form, ResultForm::per_route);
}

TEST(Forms, results_are_pre_reduced_where_the_wire_is_the_bound_and_bits_may_depend_on_ranks) {
  Problem problem = qwen(8192);  // one cell a route is more wire than work
  const WireEstimate estimate = estimate_wire(problem, 8192);
  ASSERT_GT(estimate.per_route_us, estimate.ffn_us);
  ASSERT_LT(estimate.pre_reduced_us, estimate.per_route_us);
  EXPECT_EQ(plan_call(problem, plan_geometry(problem, kEngine), 8192).result_form, ResultForm::pre_reduced);
  problem.batch_invariant = true;
  EXPECT_EQ(plan_call(problem, plan_geometry(problem, kEngine), 8192).result_form, ResultForm::per_route);
  Problem mixtral = qwen(8192);
  mixtral.hidden = 4096;
  mixtral.intermediate = 14336;
  mixtral.num_experts = 8;
  mixtral.top_k = 2;
  EXPECT_EQ(plan_call(mixtral, plan_geometry(mixtral, kEngine), 8192).result_form, ResultForm::per_route);
}

TEST(Forms, a_few_microseconds_of_wire_are_not_worth_a_rounding) {
  Problem problem = qwen(64);
  problem.hidden = 64;
  problem.intermediate = 8;
  const WireEstimate estimate = estimate_wire(problem, 64);
  ASSERT_GT(estimate.per_route_us, estimate.ffn_us);
  ASSERT_LT(estimate.pre_reduced_us, estimate.per_route_us);
  EXPECT_EQ(plan_call(problem, plan_geometry(problem, kEngine), 64).result_form, ResultForm::per_route);
}

TEST(Forms, short_tiles_are_taken_together_where_there_are_many) {
  EngineTraits engine = kEngine;
  engine.tile.task_elements = 2048;
  const auto tiles = [&](std::int64_t max_tokens) {
    const CallPlan plan = plan_call(qwen(8192), plan_geometry(qwen(8192), engine), max_tokens);
    return std::pair(plan.up_tiles, plan.down_tiles);
  };
  EXPECT_EQ(tiles(8192), std::pair(1, 2));  // k of 2048 and 768
  EXPECT_EQ(tiles(1024), std::pair(1, 1));  // 16 experts x 4 m-blocks x 8 down tiles are few
  EXPECT_EQ(plan_call(qwen(8192), plan_geometry(qwen(8192), kEngine), 8192).down_tiles, 1);
}

TEST(Forms, few_rows_of_narrow_experts_are_taken_together_but_half_as_long) {
  EngineTraits engine = kEngine;
  engine.tile.task_elements = 2048;
  const auto plan = [&](int intermediate, std::int64_t max_tokens, int top_k) {
    Problem problem = qwen(8192);
    problem.num_ranks = 1;
    problem.intermediate = intermediate;
    problem.top_k = top_k;
    return plan_call(problem, plan_geometry(problem, engine), max_tokens);
  };
  const auto down_tiles = [&](int intermediate, std::int64_t max_tokens, int top_k = 8) {
    return plan(intermediate, max_tokens, top_k).down_tiles;
  };
  EXPECT_EQ(down_tiles(256, 4096), 8);  // 2 full m-blocks an expert
  EXPECT_EQ(down_tiles(256, 1024), 4);  // 64 rows
  EXPECT_EQ(down_tiles(768, 1024), 1);
  EXPECT_EQ(down_tiles(256, 64), 4);
  EXPECT_EQ(down_tiles(256, 64, 1), 1);  // of 64 m-blocks at most, with 8 down tiles each
  EXPECT_EQ(down_tiles(256, 16), 4);  // lined: 128 m-blocks at most
  EXPECT_EQ(down_tiles(64, 16), 4);   // so long that 256 tasks are left
  EXPECT_EQ(down_tiles(64, 15), 1);
  EXPECT_EQ(plan(256, 4096, 8).halved_down_tiles, 4);
  EXPECT_EQ(plan(256, 1024, 8).halved_down_tiles, 2);
  EXPECT_EQ(plan(256, 1023, 8).halved_down_tiles, 0);  // less than half an m-block an expert
}

TEST(Forms, down_tiles_that_are_fastest_together_are_a_task_and_long_ones_end_the_call_alone) {
  EngineTraits engine = kEngine;
  engine.tile.down_columns = 128;
  engine.tile.down_tiles_at_once = 2;
  engine.tile.task_elements = 2048;
  const auto plan = [&](int intermediate, std::int64_t max_tokens) {
    Problem problem = qwen(8192);
    problem.intermediate = intermediate;
    return plan_call(problem, plan_geometry(problem, engine), max_tokens);
  };
  EXPECT_EQ(plan(768, 8192).down_tiles, 4);
  EXPECT_EQ(plan(768, 8192).halved_down_tiles, 2);
  EXPECT_EQ(plan(256, 8192).down_tiles, 16);
  EXPECT_EQ(plan(256, 8192).halved_down_tiles, 8);
  EXPECT_EQ(plan(768, 1024).down_tiles, 2);
  EXPECT_EQ(plan(768, 1024).halved_down_tiles, 0);  // one product, which is not divided
  EXPECT_EQ(plan(768, 16).down_tiles, 2);  // lined
  Problem narrow = qwen(8192);
  narrow.intermediate = 256;
  EXPECT_THAT(explain_plan(narrow, plan_geometry(narrow, engine), plan(256, 8192)),
              testing::HasSubstr("16 a task (8 down where the call ends)"));
  EXPECT_FALSE(plan(4032, 8192).narrow_ends);  // half a product would be a task of less than 2,048 elements
  EXPECT_TRUE(plan(4096, 8192).narrow_ends);
  EXPECT_TRUE(plan(4096, 16).narrow_ends);
  engine.tile.down_tiles_at_once = 1;
  EXPECT_FALSE(plan(4096, 8192).narrow_ends);
}

TEST(Forms, long_up_tiles_of_few_rows_are_tasks) {
  EngineTraits engine = kEngine;
  engine.tile.task_elements = 2048;
  engine.tile.narrow_rows = 64;
  const auto plan = [&](int hidden) {
    Problem problem = qwen(8192);
    problem.hidden = hidden;
    return plan_call(problem, plan_geometry(problem, engine), 16);
  };
  EXPECT_FALSE(plan(4096).narrow_ups);  // its tiles are not multiplied two at once
  engine.tile.up_tiles_at_once = 2;
  EXPECT_FALSE(plan(4032).narrow_ups);
  EXPECT_TRUE(plan(4096).narrow_ups);
  Problem problem = qwen(8192);
  problem.hidden = 4096;
  const Geometry geometry = plan_geometry(problem, engine);
  EXPECT_THAT(explain_plan(problem, geometry, plan(4096)), HasSubstr("a task (1 up where there are at most 64 rows)"));
}

TEST(Forms, tasks_are_taken_in_pairs_where_experts_have_many_rows_and_the_engine_wants_it) {
  EngineTraits engine = kEngine;
  const auto tickets = [&](std::int64_t max_tokens) {
    const Problem problem = qwen(8192);
    return plan_call(problem, plan_geometry(problem, engine), max_tokens).tickets_at_once;
  };
  EXPECT_EQ(tickets(8192), 1);
  engine.tile.pair_rows = 256;
  const Problem problem = qwen(8192);
  const std::int64_t tokens = 256 * problem.num_experts / problem.top_k / problem.num_ranks;  // of a rank
  EXPECT_EQ(tickets(tokens - 1), 1);
  EXPECT_EQ(tickets(tokens), 2);
  EXPECT_THAT(explain_plan(problem, plan_geometry(problem, engine), plan_call(problem, plan_geometry(problem, engine), tokens)),
              HasSubstr("experts have 256 rows or more on average"));
  engine.tile.pair_rows = 0;
  EXPECT_EQ(tickets(0), 2);
}

TEST(Forms, a_call_may_not_exceed_its_layer) {
  const Problem plain = qwen(100);
  const Geometry g = plan_geometry(plain, kEngine);
  EXPECT_THAT([&] { plan_call(plain, g, 101); }, ThrowsMessage<InvalidArgument>(HasSubstr("(101) must be in 0..100")));
  EXPECT_THAT([&] { plan_call(plain, g, -1); }, ThrowsMessage<InvalidArgument>(HasSubstr("(-1) must be in 0..100")));
}

TEST(Estimate, one_rank_has_no_wire) {
  Problem problem = qwen(8192);
  problem.num_ranks = 1;
  EXPECT_EQ(estimate_wire(problem, 8192).per_route_us, 0.0);
  EXPECT_EQ(plan_call(problem, plan_geometry(problem, kEngine), 8192).result_form, ResultForm::per_route);
}

TEST(PlanHash, tells_every_field_apart_that_ranks_must_agree_on) {
  const Problem problem = qwen(8192);
  const Geometry g = plan_geometry(problem, kEngine);
  const CallPlan plan = plan_call(problem, g, 8192);
  const std::uint64_t hash = plan_hash(g, plan);
  EXPECT_EQ(plan_hash(g, plan), hash);
  const auto differs = [&](auto&& change) {
    Geometry other_g = g;
    CallPlan other_plan = plan;
    change(other_g, other_plan);
    return plan_hash(other_g, other_plan) != hash;
  };
  EXPECT_TRUE(differs([](Geometry& o, CallPlan&) { ++o.num_ranks; }));
  EXPECT_TRUE(differs([](Geometry& o, CallPlan&) { ++o.num_local_experts; }));
  EXPECT_TRUE(differs([](Geometry& o, CallPlan&) { o.hidden += 8; }));
  EXPECT_TRUE(differs([](Geometry& o, CallPlan&) { o.intermediate += 8; }));
  EXPECT_TRUE(differs([](Geometry& o, CallPlan&) { ++o.top_k; }));
  EXPECT_TRUE(differs([](Geometry& o, CallPlan&) { o.element_bytes = 4; }));
  EXPECT_TRUE(differs([](Geometry& o, CallPlan&) { ++o.max_tokens; }));
  EXPECT_TRUE(differs([](Geometry& o, CallPlan&) { ++o.wave_tokens; }));
  EXPECT_TRUE(differs([](Geometry& o, CallPlan&) { ++o.wave_ring; }));
  EXPECT_TRUE(differs([](Geometry& o, CallPlan&) { ++o.lined_tokens; }));
  EXPECT_TRUE(differs([](Geometry& o, CallPlan&) { ++o.listed_tokens; }));
  EXPECT_TRUE(differs([](Geometry& o, CallPlan&) { ++o.slot_block; }));
  EXPECT_TRUE(differs([](Geometry& o, CallPlan&) { ++o.token_block; }));
  EXPECT_TRUE(differs([](Geometry& o, CallPlan&) { ++o.num_result_cells; }));
  EXPECT_TRUE(differs([](Geometry& o, CallPlan&) { o.tile.down_columns = 8; }));
  EXPECT_TRUE(differs([](Geometry&, CallPlan& o) { o.wire_form = WireForm::lined; }));
  EXPECT_TRUE(differs([](Geometry&, CallPlan& o) { o.result_form = ResultForm::per_route; }));
  EXPECT_TRUE(differs([](Geometry&, CallPlan& o) { o.list_weights = !o.list_weights; }));
  EXPECT_TRUE(differs([](Geometry&, CallPlan& o) { --o.max_tokens; }));
  // Rows of a tile and the intermediate ring are a rank's own affair.
  EXPECT_FALSE(differs([](Geometry& o, CallPlan&) { o.tile.rows = 8; }));
  EXPECT_FALSE(differs([](Geometry& o, CallPlan&) { ++o.num_m_blocks; }));
}

TEST(Explain, names_the_choices) {
  const Problem problem = qwen(8192);
  const Geometry g = plan_geometry(problem, kEngine);
  EXPECT_THAT(explain_plan(problem, g, plan_call(problem, g, 8192)),
              testing::AllOf(HasSubstr("wire form counted"), HasSubstr("8 waves of up to 1024 tokens"),
                             HasSubstr("pre_reduced"), HasSubstr("128 rows x 128 up / 256 down")));
  EXPECT_THAT(explain_plan(problem, g, plan_call(problem, g, 16)),
              testing::AllOf(HasSubstr("wire form lined"), HasSubstr("lines without fences are fastest"),
                             HasSubstr("results per_route")));
  Problem forced = problem;
  forced.max_tokens = 100;
  forced.wire_form = WireForm::lined;
  const Geometry lined = plan_geometry(forced, kEngine);
  EXPECT_THAT(explain_plan(forced, lined, plan_call(forced, lined, 100)),
              HasSubstr("lined: at most 100 tokens a rank, as asked for"));
}

}  // namespace
}  // namespace flashmoe
