// Structs of programs that were compiled with an older or newer header than the library.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

#include "cpu/reference.hpp"
#include "support/temp_folder.hpp"
#include "unit/c_calls.hpp"
#include "unit/problem_rules.hpp"

namespace flashmoe {
namespace {

using test::Batch;
using test::expect_failure;
using test::make_call;
using test::OneLayer;

TEST(CStructs, structs_of_other_headers_are_read_or_refused) {
  flashmoe_problem problem = to_c(valid_problem());
  problem.wave_tokens = 8;
  problem.struct_size = offsetof(flashmoe_problem, wave_tokens);  // an older header, which had no waves
  std::uint64_t older = 0;
  ASSERT_EQ(flashmoe_problem_hash(&problem, &older), FLASHMOE_OK);
  EXPECT_EQ(older, hash(valid_problem()));
  problem.struct_size = sizeof problem + 8;
  expect_failure(flashmoe_problem_validate(&problem), FLASHMOE_INVALID_ARGUMENT, "use a library as new as the header");
  problem.struct_size = 0;
  expect_failure(flashmoe_problem_validate(&problem), FLASHMOE_INVALID_ARGUMENT, "call flashmoe_problem_init first");
  expect_failure(flashmoe_problem_validate(nullptr), FLASHMOE_INVALID_ARGUMENT, "problem must not be NULL");
}

TEST(CStructs, init_writes_no_more_than_the_callers_struct) {
  std::array<unsigned char, sizeof(flashmoe_problem)> memory;
  memory.fill(0xab);
  constexpr std::size_t known = offsetof(flashmoe_problem, wave_tokens);
  flashmoe_problem_init_sized(reinterpret_cast<flashmoe_problem*>(memory.data()), known);
  EXPECT_EQ(reinterpret_cast<flashmoe_problem*>(memory.data())->struct_size, known);
  EXPECT_THAT(std::vector<int>(memory.begin() + known, memory.end()), testing::Each(0xab));
  flashmoe_problem_init_sized(nullptr, known);
}

/// A struct as a header had it that ended before the member at `known`: poison lies where that member is now.
template <class T>
void make_older(T& value, std::size_t known) {
  auto* bytes = reinterpret_cast<unsigned char*>(&value);
  std::fill(bytes + known, bytes + sizeof value, 0xab);
  value.struct_size = known;
}
template <class T>
void expect_untouched(const T& value, std::size_t known) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(&value);
  EXPECT_EQ(value.struct_size, known);
  EXPECT_THAT(std::vector<int>(bytes + known, bytes + sizeof value), testing::Each(0xab));
}

TEST(CStructs, a_model_fills_an_older_struct_or_is_refused_where_it_sets_what_that_lacks) {
  const test::TempFolder folder;
  const auto config = folder.write("config.json", R"({"model_type": "gpt_oss", "hidden_size": 64,
      "intermediate_size": 96, "num_local_experts": 8, "num_experts_per_tok": 2, "num_hidden_layers": 2, "swiglu_limit": 5.0})");
  flashmoe_problem problem;
  flashmoe_problem_init(&problem);
  flashmoe_router_config router;
  flashmoe_router_config_init(&router);
  make_older(problem, offsetof(flashmoe_problem, swiglu_limit));
  const auto load = [&] { return flashmoe_load_config(config.c_str(), 2, 16, FLASHMOE_BF16, &problem, &router); };
  expect_failure(load(), FLASHMOE_INVALID_ARGUMENT, "problem->struct_size (72) must be larger for this model");
  EXPECT_EQ(problem.hidden, 0) << "nothing is written";

  flashmoe_problem_init(&problem);
  make_older(problem, offsetof(flashmoe_problem, wave_tokens));
  make_older(router, offsetof(flashmoe_router_config, jitter_epsilon));
  ASSERT_EQ(load(), FLASHMOE_OK) << flashmoe_last_error();
  expect_untouched(problem, offsetof(flashmoe_problem, wave_tokens));
  expect_untouched(router, offsetof(flashmoe_router_config, jitter_epsilon));
  EXPECT_EQ(problem.swiglu_limit, 5.0);
  EXPECT_EQ(router.num_experts, 8);

  flashmoe_problem_init(&problem);
  router.struct_size = 0;
  expect_failure(load(), FLASHMOE_INVALID_ARGUMENT, "call flashmoe_router_config_init first");
  EXPECT_EQ(problem.hidden, 0) << "nothing is written";
}

/// Has a function take `value` as a program of a newer header gives it, and as one that forgot to initialise it.
template <class T, class Function>
void expect_sizes_refused(const char* name, T value, const Function& function) {
  value.struct_size = sizeof value + 8;
  expect_failure(function(&value), FLASHMOE_INVALID_ARGUMENT,
                 fmt::format("{}->struct_size ({}) must be at most {}", name, sizeof value + 8, sizeof value));
  value.struct_size = 0;
  expect_failure(function(&value), FLASHMOE_INVALID_ARGUMENT, fmt::format("call flashmoe_{}_init first", name));
}

TEST(CStructs, structs_of_newer_headers_are_refused_wherever_they_go_and_the_layer_goes_on) {
  OneLayer one;
  ASSERT_NE(one.layer, nullptr) << flashmoe_last_error();
  const flashmoe_problem problem = to_c(one.problem);
  const flashmoe_weights weights = test::make_weights(one.weights);
  Batch batch = test::make_batch(one.problem, 9, 1, test::Routing::any);
  const flashmoe_call call = make_call(batch);
  flashmoe_layer* layer = nullptr;
  flashmoe_group* group = nullptr;
  flashmoe_router* router = nullptr;
  expect_sizes_refused("group_options", to_c(GroupOptions{}), [&](const flashmoe_group_options* options) {
    return flashmoe_group_create_local(1, options, &group);
  });
  expect_sizes_refused("problem", problem, [&](const flashmoe_problem* given) {
    return flashmoe_layer_create(one.group, 0, given, &weights, 0, &layer);
  });
  expect_sizes_refused("weights", weights, [&](const flashmoe_weights* given) {
    return flashmoe_layer_create(one.group, 0, &problem, given, 0, &layer);
  });
  expect_sizes_refused("call", call, [&](const flashmoe_call* given) {
    return flashmoe_layer_forward(one.layer, given, nullptr);
  });
  expect_sizes_refused("call", call, [&](const flashmoe_call* given) {
    return flashmoe_layer_enqueue(one.layer, given);
  });
  expect_sizes_refused("call_stats", flashmoe_call_stats{}, [&](flashmoe_call_stats* stats) {
    return flashmoe_layer_forward(one.layer, &call, stats);
  });
  expect_sizes_refused("layer_info", flashmoe_layer_info{}, [&](flashmoe_layer_info* info) {
    return flashmoe_layer_get_info(one.layer, info);
  });
  expect_sizes_refused("heap_region", flashmoe_heap_region{}, [&](flashmoe_heap_region* region) {
    return flashmoe_layer_get_heap_region(one.layer, 0, region);
  });
  flashmoe_router_config config = to_c(RouterConfig{.num_experts = 3, .top_k = 1});
  expect_sizes_refused("router_config", config, [&](const flashmoe_router_config* given) {
    return flashmoe_router_create(given, nullptr, &router);
  });
  expect_sizes_refused("router_parameters", to_c(RouterParameters{}), [&](const flashmoe_router_parameters* given) {
    return flashmoe_router_create(&config, given, &router);
  });
  EXPECT_EQ(group, nullptr);
  EXPECT_EQ(layer, nullptr);
  EXPECT_EQ(router, nullptr);
  EXPECT_EQ(flashmoe_layer_forward(one.layer, &call, nullptr), FLASHMOE_OK) << "refused calls are no calls";
}

TEST(CStructs, a_program_of_older_headers_runs_a_layer_and_a_router) {
  flashmoe_group_options options;
  flashmoe_group_options_init(&options);
  make_older(options, offsetof(flashmoe_group_options, first_device));
  const OneLayer one(&options);
  ASSERT_NE(one.layer, nullptr) << flashmoe_last_error();
  Batch batch = test::make_batch(one.problem, 9, 1, test::Routing::any);
  flashmoe_call call = make_call(batch);
  make_older(call, offsetof(flashmoe_call, stream));
  flashmoe_call_stats stats;
  flashmoe_call_stats_init(&stats);
  make_older(stats, offsetof(flashmoe_call_stats, dispatch_us));
  ASSERT_EQ(flashmoe_layer_forward(one.layer, &call, &stats), FLASHMOE_OK) << flashmoe_last_error();
  expect_untouched(stats, offsetof(flashmoe_call_stats, dispatch_us));
  EXPECT_EQ(stats.wire_form, FLASHMOE_WIRE_LINED);
  const auto wanted = reference::layer(one.problem, one.experts, batch.x_view(), batch.routing());
  EXPECT_LE(reference::relative_l2(batch.output(one.problem), wanted), test::tolerance(one.problem.dtype));
  flashmoe_layer_info info;
  flashmoe_layer_info_init(&info);
  make_older(info, offsetof(flashmoe_layer_info, device));
  ASSERT_EQ(flashmoe_layer_get_info(one.layer, &info), FLASHMOE_OK);
  expect_untouched(info, offsetof(flashmoe_layer_info, device));
  EXPECT_GT(info.heap_bytes, 0u);

  flashmoe_router_config config;
  flashmoe_router_config_init(&config);
  config.num_experts = 3;
  config.top_k = 1;
  make_older(config, offsetof(flashmoe_router_config, jitter_epsilon));
  flashmoe_router_parameters parameters;
  flashmoe_router_parameters_init(&parameters);
  const float gate[] = {1, 0, 0, 3, -1, 0};  // [3][2]
  parameters.hidden = 2;
  parameters.weight = gate;
  make_older(parameters, offsetof(flashmoe_router_parameters, weight_dtype));
  flashmoe_router* router = nullptr;
  ASSERT_EQ(flashmoe_router_create(&config, &parameters, &router), FLASHMOE_OK) << flashmoe_last_error();
  const float x[] = {1, 1};
  std::int32_t id = -1;
  float weight = 0;
  ASSERT_EQ(flashmoe_router_route(router, FLASHMOE_FP32, x, 1, &id, &weight, nullptr), FLASHMOE_OK) << flashmoe_last_error();
  EXPECT_EQ(id, 1);
  flashmoe_router_destroy(router);
}

}  // namespace
}  // namespace flashmoe
