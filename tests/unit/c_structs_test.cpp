// Structs of programs that were compiled with an older or newer header than the library.
#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

#include "cpu/reference.hpp"
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
