// The C interface: what goes in, what comes out, and that no error leaves as an exception.
#include "flashmoe/flashmoe.h"

#include <gmock/gmock.h>

#include <array>
#include <cstddef>
#include <string>
#include <thread>
#include <vector>

#include "api/c_structs.hpp"
#include "cpu/reference.hpp"
#include "flashmoe/model_config.hpp"
#include "support/batch.hpp"
#include "support/local_weights.hpp"
#include "support/temp_folder.hpp"
#include "unit/c_calls.hpp"
#include "unit/problem_rules.hpp"

namespace flashmoe {
namespace {

using test::Batch;
using test::LocalWeights;
using test::expect_failure;
using test::make_call;
using test::make_weights;
using test::OneLayer;
using test::small_problem;
using testing::HasSubstr;

TEST(CAbi, defaults_are_the_cpp_ones) {
  flashmoe_problem problem;
  flashmoe_problem_init(&problem);
  EXPECT_EQ(problem.struct_size, sizeof problem);
  EXPECT_EQ(read_problem(&problem), Problem{});
  flashmoe_router_config router;
  flashmoe_router_config_init(&router);
  EXPECT_EQ(read_router_config(&router), RouterConfig{});
  flashmoe_group_options options;
  flashmoe_group_options_init(&options);
  EXPECT_EQ(read_group_options(&options), GroupOptions{});
  EXPECT_EQ(read_group_options(nullptr), GroupOptions{});
}

TEST(CAbi, every_member_of_a_problem_crosses) {
  const Problem problem{.num_ranks = 2, .hidden = 16, .intermediate = 24, .num_experts = 6, .top_k = 3, .max_tokens = 5,
                        .dtype = DType::fp16, .activation = Activation::swiglu_clamped, .gated = true, .up_bias = true,
                        .down_bias = true, .weight_on_input = true, .swiglu_alpha = 1.5, .swiglu_limit = 6,
                        .wire_form = WireForm::counted, .result_form = ResultForm::per_route, .wave_tokens = 4,
                        .wave_ring = 3, .batch_invariant = true};
  const flashmoe_problem c = to_c(problem);
  EXPECT_EQ(read_problem(&c), problem);
  std::uint64_t c_hash = 0;
  EXPECT_EQ(flashmoe_problem_hash(&c, &c_hash), FLASHMOE_OK);
  EXPECT_EQ(c_hash, hash(problem));
  const Problem plain{.gated = false};
  const flashmoe_problem c_plain = to_c(plain);
  EXPECT_EQ(read_problem(&c_plain), plain);
}

TEST(CAbi, every_rule_of_validate_has_its_sentence) {
  for (const ProblemRule& rule : problem_rules()) {
    const flashmoe_problem problem = to_c(rule.problem);
    EXPECT_EQ(flashmoe_problem_validate(&problem), FLASHMOE_INVALID_ARGUMENT) << rule.name;
    EXPECT_EQ(flashmoe_last_error(), rule.message);
  }
  const flashmoe_problem valid = to_c(valid_problem());
  EXPECT_EQ(flashmoe_problem_validate(&valid), FLASHMOE_OK);
}

TEST(CAbi, numbers_beyond_every_enumeration_do_not_wrap_around) {
  flashmoe_problem problem = to_c(valid_problem());
  problem.dtype = 256;
  expect_failure(flashmoe_problem_validate(&problem), FLASHMOE_INVALID_ARGUMENT, "dtype (number 256)");
  problem = to_c(valid_problem());
  problem.wire_form = -1;
  expect_failure(flashmoe_problem_validate(&problem), FLASHMOE_INVALID_ARGUMENT, "wire_form (number -1)");
  problem = to_c(valid_problem());
  problem.batch_invariant = -5;
  expect_failure(flashmoe_problem_validate(&problem), FLASHMOE_INVALID_ARGUMENT, "batch_invariant (-5) must be 0 or 1");
}

TEST(CAbi, versions_are_compared) {
  EXPECT_STREQ(flashmoe_version(), FLASHMOE_VERSION);
  EXPECT_EQ(FLASHMOE_CHECK_VERSION(), FLASHMOE_OK);
  expect_failure(flashmoe_check_version(FLASHMOE_VERSION_MAJOR + 1, 0, 0), FLASHMOE_INVALID_ARGUMENT, "was built for");
  expect_failure(flashmoe_check_version(FLASHMOE_VERSION_MAJOR, FLASHMOE_VERSION_MINOR, FLASHMOE_VERSION_PATCH + 1),
                 FLASHMOE_INVALID_ARGUMENT, "build it again");
}

TEST(CAbi, statuses_have_names) {
  EXPECT_STREQ(flashmoe_status_name(FLASHMOE_OK), "ok");
  EXPECT_STREQ(flashmoe_status_name(FLASHMOE_TIMEOUT), "timeout");
  EXPECT_STREQ(flashmoe_status_name(static_cast<flashmoe_status>(99)), "unknown status");
}

TEST(CAbi, last_error_belongs_to_a_thread) {
  expect_failure(flashmoe_problem_validate(nullptr), FLASHMOE_INVALID_ARGUMENT, "problem");
  std::string other = "not run";
  std::thread([&] { other = flashmoe_last_error(); }).join();
  EXPECT_EQ(other, "");
  EXPECT_THAT(flashmoe_last_error(), HasSubstr("problem"));
}

TEST(CAbi, presets_and_configs_give_problem_and_router) {
  ASSERT_GT(flashmoe_num_presets(), 10u);
  EXPECT_EQ(flashmoe_preset_name(flashmoe_num_presets()), nullptr);
  for (std::size_t i = 0; i < flashmoe_num_presets(); ++i) {
    flashmoe_problem problem;
    flashmoe_problem_init(&problem);
    flashmoe_router_config router;
    flashmoe_router_config_init(&router);
    const char* name = flashmoe_preset_name(i);
    ASSERT_EQ(flashmoe_preset(name, 4, 64, FLASHMOE_BF16, &problem, &router), FLASHMOE_OK) << flashmoe_last_error();
    EXPECT_EQ(read_problem(&problem), make_problem(model_preset(name), 4, 64, DType::bf16));
    EXPECT_EQ(read_router_config(&router), model_preset(name).router);
    EXPECT_EQ(flashmoe_router_config_validate(&router), FLASHMOE_OK) << flashmoe_last_error();
  }
  flashmoe_problem problem;
  flashmoe_problem_init(&problem);
  expect_failure(flashmoe_preset("gpt-9", 4, 64, FLASHMOE_BF16, &problem, nullptr), FLASHMOE_INVALID_ARGUMENT, "gpt-9");
  expect_failure(flashmoe_preset(nullptr, 4, 64, FLASHMOE_BF16, &problem, nullptr), FLASHMOE_INVALID_ARGUMENT, "name");

  const test::TempFolder folder;
  const auto config = folder.write("config.json", R"({"model_type": "mixtral", "hidden_size": 64, "intermediate_size": 96,
      "num_local_experts": 8, "num_experts_per_tok": 2, "num_hidden_layers": 2, "hidden_act": "silu"})");
  ASSERT_EQ(flashmoe_load_config(config.c_str(), 2, 16, FLASHMOE_FP16, &problem, nullptr), FLASHMOE_OK)
      << flashmoe_last_error();
  EXPECT_EQ(problem.hidden, 64);
  EXPECT_EQ(problem.dtype, FLASHMOE_FP16);
  expect_failure(flashmoe_load_config((folder / "none").c_str(), 2, 16, FLASHMOE_FP16, &problem, nullptr),
                 FLASHMOE_INVALID_ARGUMENT, "none must exist");
}

TEST(CAbi, a_layer_computes_what_the_reference_does) {
  const Problem problem = small_problem(2);
  const test::DenseExperts experts(problem, 5);
  const flashmoe_problem c_problem = to_c(problem);
  flashmoe_group* group = nullptr;
  ASSERT_EQ(flashmoe_group_create_local(2, nullptr, &group), FLASHMOE_OK) << flashmoe_last_error();
  std::vector<LocalWeights> weights;
  for (int rank = 0; rank < 2; ++rank) weights.emplace_back(problem, experts, rank);
  std::array<flashmoe_layer*, 2> layers{};
  for (int rank = 0; rank < 2; ++rank) {
    const flashmoe_weights c_weights = make_weights(weights[rank]);
    ASSERT_EQ(flashmoe_layer_create(group, rank, &c_problem, &c_weights, 0, &layers[rank]), FLASHMOE_OK)
        << flashmoe_last_error();
  }
  flashmoe_group_destroy(group);

  std::vector<Batch> batches{test::make_batch(problem, 20, 1, test::Routing::any), test::make_batch(problem, 3, 2)};
  std::array<flashmoe_status, 2> statuses{};
  std::array<flashmoe_call_stats, 2> stats;
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      const flashmoe_call call = make_call(batches[rank]);
      flashmoe_call_stats_init(&stats[rank]);
      statuses[rank] = flashmoe_layer_forward(layers[rank], &call, &stats[rank]);
    });
  }
  threads.clear();
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(statuses[rank], FLASHMOE_OK);
    const auto wanted = reference::layer(problem, experts, batches[rank].x_view(), batches[rank].routing());
    EXPECT_LE(reference::relative_l2(batches[rank].output(problem), wanted), test::tolerance(problem.dtype));
    EXPECT_GT(stats[rank].wire_bytes, 0u);
    EXPECT_GT(stats[rank].wall_us, 0.0);
    EXPECT_EQ(stats[rank].wire_form, FLASHMOE_WIRE_LINED);
  }
  flashmoe_layer_destroy(layers[0]);
  flashmoe_layer_destroy(layers[1]);
}

TEST(CAbi, info_lists_every_region_of_the_heap) {
  const OneLayer one;
  ASSERT_NE(one.layer, nullptr) << flashmoe_last_error();
  flashmoe_layer_info info;
  flashmoe_layer_info_init(&info);
  ASSERT_EQ(flashmoe_layer_get_info(one.layer, &info), FLASHMOE_OK);
  EXPECT_STREQ(info.engine, "cpu-openblas");
  EXPECT_THAT(info.plan, HasSubstr("wire form"));
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < info.num_heap_regions; ++i) {
    flashmoe_heap_region region;
    flashmoe_heap_region_init(&region);
    ASSERT_EQ(flashmoe_layer_get_heap_region(one.layer, i, &region), FLASHMOE_OK);
    EXPECT_STRNE(region.name, "");
    bytes += region.bytes;
  }
  EXPECT_GT(bytes, 0u);
  EXPECT_LE(bytes, info.heap_bytes);
  flashmoe_heap_region region;
  flashmoe_heap_region_init(&region);
  expect_failure(flashmoe_layer_get_heap_region(one.layer, info.num_heap_regions, &region), FLASHMOE_INVALID_ARGUMENT,
                 "must be in 0..11");
}

TEST(CAbi, faults_have_their_own_statuses) {
  const Problem problem = small_problem(2);
  const test::DenseExperts experts(problem, 5);
  const LocalWeights weights(problem, experts, 0);
  flashmoe_problem c_problem = to_c(problem);
  const flashmoe_weights c_weights = make_weights(weights);
  flashmoe_group_options options;
  flashmoe_group_options_init(&options);
  options.deadline_seconds = 0.1;
  flashmoe_group* group = nullptr;
  ASSERT_EQ(flashmoe_group_create_local(2, &options, &group), FLASHMOE_OK);
  flashmoe_layer* layer = nullptr;
  ASSERT_EQ(flashmoe_layer_create(group, 0, &c_problem, &c_weights, 0, &layer), FLASHMOE_OK);

  flashmoe_layer* other = nullptr;
  c_problem.hidden = 40;
  expect_failure(flashmoe_layer_create(group, 1, &c_problem, &c_weights, 0, &other), FLASHMOE_FABRIC_ERROR,
                 "hidden is 32 on rank 0 and 40 on rank 1");
  EXPECT_EQ(other, nullptr);

  Batch batch = test::make_batch(problem, 3, 1);
  const flashmoe_call call = make_call(batch);
  expect_failure(flashmoe_layer_forward(layer, &call, nullptr), FLASHMOE_TIMEOUT, "for rank 1 to enter call 0");
  expect_failure(flashmoe_layer_forward(layer, &call, nullptr), FLASHMOE_TIMEOUT, "heap is dead");
  flashmoe_layer_destroy(layer);
  flashmoe_group_destroy(group);

  options.backend = 7;
  expect_failure(flashmoe_group_create_local(2, &options, &group), FLASHMOE_INVALID_ARGUMENT, "backend (number 7)");
}

TEST(CAbi, what_only_enqueue_takes_is_refused_by_forward) {
  OneLayer one;
  Batch batch = test::make_batch(one.problem, 4, 1);
  flashmoe_call call = make_call(batch);
  const std::int64_t rows = 2;
  call.gpu_tokens = &rows;
  expect_failure(flashmoe_layer_forward(one.layer, &call, nullptr), FLASHMOE_INVALID_ARGUMENT,
                 "gpu_tokens of the call must be NULL in flashmoe_layer_forward()");
  call.gpu_tokens = nullptr;
  int stream = 0;
  call.stream = &stream;
  expect_failure(flashmoe_layer_forward(one.layer, &call, nullptr), FLASHMOE_INVALID_ARGUMENT,
                 "stream of the call must be");
  call.stream = nullptr;
  EXPECT_EQ(flashmoe_layer_forward(one.layer, &call, nullptr), FLASHMOE_OK) << flashmoe_last_error();
}

TEST(CAbi, null_handles_are_errors_and_destroying_them_is_nothing) {
  flashmoe_layer_destroy(nullptr);
  flashmoe_group_destroy(nullptr);
  flashmoe_router_destroy(nullptr);
  const flashmoe_problem problem = to_c(valid_problem());
  flashmoe_layer* layer = nullptr;
  expect_failure(flashmoe_group_create_local(1, nullptr, nullptr), FLASHMOE_INVALID_ARGUMENT, "group must not be NULL");
  flashmoe_group* group = nullptr;
  expect_failure(flashmoe_group_join(nullptr, 0, 2, 0, nullptr, &group), FLASHMOE_INVALID_ARGUMENT, "group_id must not be NULL");
  expect_failure(flashmoe_group_join("id", 0, 2, 0, nullptr, nullptr), FLASHMOE_INVALID_ARGUMENT, "group must not be NULL");
  expect_failure(flashmoe_group_join("id", 0, 2, 0, nullptr, &group), FLASHMOE_INVALID_ARGUMENT, "needs backend cuda, got cpu");
  expect_failure(flashmoe_layer_create(nullptr, 0, &problem, nullptr, 0, &layer), FLASHMOE_INVALID_ARGUMENT, "group");
  expect_failure(flashmoe_layer_forward(nullptr, nullptr, nullptr), FLASHMOE_INVALID_ARGUMENT, "layer must not be NULL");
  expect_failure(flashmoe_router_create(nullptr, nullptr, nullptr), FLASHMOE_INVALID_ARGUMENT, "router");
  expect_failure(flashmoe_router_route_logits(nullptr, nullptr, 0, nullptr, nullptr, nullptr), FLASHMOE_INVALID_ARGUMENT, "router");
}

TEST(CAbi, a_router_routes_hidden_states_and_logits) {
  flashmoe_router_config config;
  flashmoe_router_config_init(&config);
  config.num_experts = 3;
  config.top_k = 2;
  config.renormalize = 1;
  const std::vector<float> weight{1, 0, 0, 1, -1, -1};  // [3][2]
  flashmoe_router_parameters parameters;
  flashmoe_router_parameters_init(&parameters);
  parameters.hidden = 2;
  parameters.weight = weight.data();
  flashmoe_router* router = nullptr;
  ASSERT_EQ(flashmoe_router_create(&config, &parameters, &router), FLASHMOE_OK) << flashmoe_last_error();
  const std::vector<float> x{2, 1, 1, 2}, logits{2, 1, -3, 1, 2, -3};
  std::vector<std::int32_t> ids(4), ids_of_logits(4);
  std::vector<float> weights(4), weights_of_logits(4);
  EXPECT_EQ(flashmoe_router_route(router, FLASHMOE_FP32, x.data(), 2, ids.data(), weights.data(), nullptr), FLASHMOE_OK);
  EXPECT_EQ(flashmoe_router_route_logits(router, logits.data(), 2, ids_of_logits.data(), weights_of_logits.data(), nullptr),
            FLASHMOE_OK);
  EXPECT_THAT(ids, testing::ElementsAre(0, 1, 1, 0));
  EXPECT_EQ(ids, ids_of_logits);
  EXPECT_EQ(weights, weights_of_logits);
  EXPECT_NEAR(weights[0] + weights[1], 1.0, 1e-6);
  expect_failure(flashmoe_router_route(router, 77, x.data(), 2, ids.data(), weights.data(), nullptr), FLASHMOE_INVALID_ARGUMENT,
                 "dtype (number 77)");
  flashmoe_router_destroy(router);
}

}  // namespace
}  // namespace flashmoe
