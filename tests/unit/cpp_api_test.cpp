// Groups, layers and routers as a program uses them.
#include <gmock/gmock.h>

#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "cpu/reference.hpp"
#include "flashmoe/flashmoe.hpp"
#include "support/batch.hpp"
#include "support/local_weights.hpp"
#include "unit/problem_rules.hpp"

namespace flashmoe {
namespace {

using test::Batch;
using test::LocalWeights;
using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

Problem small_problem(int num_ranks) {
  return {.num_ranks = num_ranks, .hidden = 32, .intermediate = 24, .num_experts = 4, .top_k = 2, .max_tokens = 20,
          .dtype = DType::fp32};
}

/// A layer on every rank of a group, created one after another.
struct World {
  Group group;
  test::DenseExperts experts;
  std::vector<LocalWeights> weights;
  std::vector<Layer> layers;

  explicit World(const Problem& problem, const GroupOptions& options = {})
      : group(Group::local(problem.num_ranks, options)), experts(problem, 7) {
    for (int rank = 0; rank < problem.num_ranks; ++rank) weights.emplace_back(problem, experts, rank);
    for (int rank = 0; rank < problem.num_ranks; ++rank) {
      layers.emplace_back(group, rank, problem, weights[static_cast<std::size_t>(rank)].view());
    }
  }
};

/// Calls every layer that has a batch, each on a thread of its own; the messages of those that threw, by rank.
std::vector<std::string> call(std::vector<Layer>& layers, std::vector<Batch>& batches,
                              const std::vector<std::int64_t>& max_tokens) {
  std::vector<std::string> messages(layers.size());
  std::vector<std::jthread> threads;
  for (std::size_t rank = 0; rank < batches.size(); ++rank) {
    threads.emplace_back([&, rank] {
      try {
        layers[rank].forward(batches[rank].x_view(), batches[rank].routing(), batches[rank].y_view(), max_tokens[rank]);
      } catch (const Error& error) {
        messages[rank] = error.what();
      }
    });
  }
  return messages;
}

TEST(CppApi, a_layer_computes_what_the_reference_does_for_every_token_count) {
  const Problem problem = small_problem(2);
  World world(problem);
  for (const std::vector<std::int64_t>& counts : {std::vector<std::int64_t>{20, 3}, {0, 5}, {0, 0}, {1, 20}}) {
    std::vector<Batch> batches;
    for (std::size_t rank = 0; rank < 2; ++rank) {
      batches.push_back(test::make_batch(problem, counts[rank], 11 + rank, test::Routing::any));
    }
    ASSERT_THAT(call(world.layers, batches, {0, 0}), testing::Each(""));
    for (Batch& batch : batches) {
      const auto wanted = reference::layer(problem, world.experts, batch.x_view(), batch.routing());
      EXPECT_LE(reference::relative_l2(batch.output(problem), wanted), test::tolerance(problem.dtype));
    }
  }
}

TEST(CppApi, stats_tell_bytes_forms_and_epochs) {
  const Problem problem = small_problem(2);
  World world(problem);
  for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
    std::vector<CallStats> stats(2);
    std::vector<std::jthread> threads;
    for (std::size_t rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] {
        Batch batch = test::make_batch(problem, 20, 3 + rank, test::Routing::last_rank);
        stats[rank] = world.layers[rank].forward(batch.x_view(), batch.routing(), batch.y_view());
      });
    }
    threads.clear();
    const std::uint64_t row_bytes = 32 * sizeof(float);
    EXPECT_EQ(stats[0].wire_bytes, 20 * row_bytes);      // each token once, although both its routes go to rank 1
    EXPECT_EQ(stats[1].wire_bytes, 2 * 20 * row_bytes);  // a result for each route
    EXPECT_GT(stats[0].wire_overhead_bytes, 0u);
    EXPECT_EQ(stats[0].epoch, epoch);
    EXPECT_EQ(stats[0].wire_form, WireForm::lined);
    EXPECT_EQ(stats[0].result_form, ResultForm::per_route);
    EXPECT_EQ(stats[0].kernel_launches, 0u);
    EXPECT_GT(stats[0].phases.wall_us, 0.0);
  }
}

TEST(CppApi, info_describes_heap_and_plan) {
  const World world(small_problem(2));
  const LayerInfo& info = world.layers[0].info();
  EXPECT_EQ(info.engine, "cpu-openblas");
  EXPECT_THAT(info.plan, HasSubstr("wire form lined"));
  EXPECT_EQ(info.wire_form, WireForm::lined);
  EXPECT_EQ(info.wave_tokens, 20);
  EXPECT_GT(info.local_bytes, 0u);
  std::size_t end = 0;
  for (const HeapRegionInfo& region : info.heap_regions) {
    EXPECT_GE(region.offset_bytes, end) << region.name;
    end = region.offset_bytes + region.bytes;
  }
  EXPECT_EQ(info.heap_regions.size(), 12u);
  EXPECT_LE(end, info.heap_bytes);
  EXPECT_LT(info.heap_bytes - end, 128u);
  EXPECT_EQ(world.layers[1].rank(), 1);
  EXPECT_EQ(world.layers[1].problem(), small_problem(2));
}

TEST(CppApi, every_rule_of_validate_holds_at_creation) {
  for (const ProblemRule& rule : problem_rules()) {
    const Group group = Group::local(4);
    EXPECT_THAT([&] { Layer(group, 0, rule.problem, {}); }, ThrowsMessage<InvalidArgument>(rule.message)) << rule.name;
  }
}

TEST(CppApi, problems_that_differ_between_ranks_are_refused_by_the_second_one) {
  const Group group = Group::local(2);
  const Problem problem = small_problem(2);
  const test::DenseExperts experts(problem, 1);
  const LocalWeights weights(problem, experts, 0);
  const Layer first(group, 0, problem, weights.view());
  Problem other = problem;
  other.activation = Activation::gelu_erf;
  EXPECT_THAT([&] { Layer(group, 1, other, weights.view()); },
              ThrowsMessage<FabricError>("layer 1 must be the same on all ranks, but activation is silu on rank 0 and gelu "
                                         "on rank 1: give every rank the same problem"));
  other = problem;
  other.max_tokens = 21;
  EXPECT_THAT([&] { Layer(group, 1, other, weights.view()); },
              ThrowsMessage<FabricError>(HasSubstr("max_tokens is 20 on rank 0 and 21 on rank 1")));
  EXPECT_NO_THROW(Layer(group, 1, problem, weights.view()));  // a refused creation does not count
}

TEST(CppApi, a_rank_that_fails_alone_may_try_another_problem) {
  const Group group = Group::local(2);
  Problem problem = small_problem(2);
  const test::DenseExperts experts(problem, 1);
  const LocalWeights weights(problem, experts, 0);
  problem.wire_form = WireForm::lined;
  problem.result_form = ResultForm::pre_reduced;
  EXPECT_THROW(Layer(group, 0, problem, weights.view()), InvalidArgument);
  EXPECT_NO_THROW(Layer(group, 0, small_problem(2), weights.view()));
  EXPECT_NO_THROW(Layer(group, 1, small_problem(2), weights.view()));
}

TEST(CppApi, wrong_places_and_weights_are_refused) {
  const Group group = Group::local(2);
  Problem problem = small_problem(2);
  const test::DenseExperts experts(problem, 1);
  const LocalWeights weights(problem, experts, 0);
  const auto refuses = [&](int rank, const Problem& wanted, const WeightsView& view, const std::string& message) {
    EXPECT_THAT([&] { Layer(group, rank, wanted, view); }, ThrowsMessage<InvalidArgument>(HasSubstr(message)));
  };
  refuses(2, problem, weights.view(), "rank (2) must be in 0..1");
  refuses(-1, problem, weights.view(), "rank (-1) must be in 0..1");
  refuses(0, small_problem(4), weights.view(), "problem.num_ranks (4) must be the group's num_ranks (2)");
  WeightsView view = weights.view();
  view.up = nullptr;
  refuses(0, problem, view, "weights.up must not be null");
  view = weights.view();
  view.down = nullptr;
  refuses(0, problem, view, "weights.down must not be null");
  view = weights.view();
  view.up = static_cast<const char*>(view.up) + 2;
  refuses(0, problem, view, "must be aligned to its elements of 4 bytes");
  view = weights.view();
  view.up_bias = static_cast<const float*>(view.up);
  refuses(0, problem, view, "weights.up_bias is given, but the problem has no up_bias");
  problem.down_bias = true;
  refuses(0, problem, weights.view(), "weights.down_bias is null, but the problem has down_bias");
}

TEST(CppApi, options_out_of_range_are_refused) {
  const auto refuses = [](int num_ranks, const GroupOptions& options, const std::string& message) {
    EXPECT_THAT([&] { Group::local(num_ranks, options); }, ThrowsMessage<InvalidArgument>(HasSubstr(message)));
  };
  refuses(0, {}, "num_ranks (0) must be between 1 and 64");
  refuses(65, {}, "num_ranks (65) must be between 1 and 64");
  refuses(2, {.deadline_seconds = 0}, "deadline_seconds (0) must be above 0");
  refuses(2, {.deadline_seconds = std::nan("")}, "deadline_seconds (nan) must be above 0");
  refuses(2, {.num_dispatchers = 0}, "num_dispatchers (0) must be between 1 and 64");
  refuses(2, {.num_processors = 65}, "num_processors (65) must be between 1 and 64");
  refuses(2, {.engine = EngineKind::hopper}, "engine (hopper) must be automatic (auto) on backend cpu");
  refuses(2, {.first_device = -1}, "first_device (-1) must be 0 on backend cpu");
  refuses(2, {.first_device = 99}, "first_device (99) must be 0 on backend cpu");
  refuses(2, {.num_threads = -1}, "num_threads (-1) must be between 0 and 256");
  refuses(2, {.backend = static_cast<BackendKind>(9)}, "backend (number 9) must be one of cpu, cuda");
}

TEST(CppApi, a_layers_own_deadline_counts_for_its_calls_and_is_checked) {
  const Problem problem = small_problem(2);
  const World world(problem, {.deadline_seconds = 300});
  const auto with = [&](int rank, double deadline_seconds) {
    return Layer(world.group, rank, problem, world.weights[static_cast<std::size_t>(rank)].view(),
                 {.deadline_seconds = deadline_seconds});
  };
  for (const double seconds : {-1.0, 1.1e6, HUGE_VAL, std::nan("")}) {
    EXPECT_THAT([&] { with(0, seconds); },
                ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("deadline_seconds ("),
                                                     HasSubstr("must be above 0 and at most 1000000"),
                                                     HasSubstr("or 0 for the group's"))));
  }
  std::vector<Layer> layers;
  for (int rank = 0; rank < 2; ++rank) layers.push_back(with(rank, 0.1));
  std::vector<Batch> batches{test::make_batch(problem, 4, 5)};  // rank 1 never comes
  EXPECT_THAT(call(layers, batches, {0}), testing::ElementsAre(HasSubstr("waited 0.1 s for rank 1"), ""));
}

TEST(CppApi, arguments_of_a_call_are_checked_before_anything_is_sent) {
  const Problem problem = small_problem(1);
  World world(problem);
  Layer& layer = world.layers[0];
  Batch batch = test::make_batch(problem, 6, 1);
  const auto refuses = [&](ConstRows x, RoutingView routing, Rows y, std::int64_t max_tokens, const std::string& message) {
    EXPECT_THAT([&] { layer.forward(x, routing, y, max_tokens); }, ThrowsMessage<InvalidArgument>(HasSubstr(message)));
  };
  refuses(batch.x_view(), batch.routing(), batch.y_view(), 21, "max_tokens of the call (21) must be in 0..20");
  refuses(batch.x_view(), batch.routing(), batch.y_view(), -1, "max_tokens of the call (-1) must be in 0..20");
  refuses(batch.x_view(), batch.routing(), batch.y_view(), 5, "num_tokens (6) must be in 0..5");
  refuses({batch.x.data(), -1}, batch.routing(), batch.y_view(), 0, "num_tokens (-1) must be in 0..20");
  refuses(batch.x_view(), batch.routing(), {batch.y.data(), 5}, 0, "y has 5 rows, wanted 6");
  refuses({nullptr, 6}, batch.routing(), batch.y_view(), 0, "x must not be null");
  refuses(batch.x_view(), batch.routing(), {nullptr, 6}, 0, "y must not be null");
  refuses(batch.x_view(), {nullptr, batch.topk_weights.data()}, batch.y_view(), 0, "topk_ids must not be null");
  refuses(batch.x_view(), {batch.topk_ids.data(), nullptr}, batch.y_view(), 0, "topk_weights must not be null");
  refuses({batch.x.data() + 1, 5}, batch.routing(), {batch.y.data(), 5}, 0, "must be aligned");
  refuses(batch.x_view(), batch.routing(), {batch.x.data() + 32 * 4, 6}, 0, "y must not overlap x");
  void* const y = batch.y.data();
  refuses(batch.x_view(), {static_cast<const std::int32_t*>(y), batch.topk_weights.data()}, batch.y_view(), 0,
          "y must not overlap topk_ids");
  refuses(batch.x_view(), {batch.topk_ids.data(), static_cast<const float*>(y)}, batch.y_view(), 0,
          "y must not overlap topk_weights");
  EXPECT_NO_THROW(layer.forward(batch.x_view(), batch.routing(), batch.y_view()));  // the heap has not died of any
  EXPECT_NO_THROW(layer.forward({}, {}, {}));
}

TEST(CppApi, layers_of_one_geometry_alternate_on_one_heap) {
  const Problem problem = small_problem(2);
  Problem other = problem;
  other.activation = Activation::relu;
  const Group group = Group::local(2);
  const test::DenseExperts experts(problem, 3);
  std::vector<LocalWeights> weights;
  std::vector<Layer> a, b;
  for (int rank = 0; rank < 2; ++rank) weights.emplace_back(problem, experts, rank);
  for (int rank = 0; rank < 2; ++rank) a.emplace_back(group, rank, problem, weights[rank].view());
  for (int rank = 1; rank >= 0; --rank) b.insert(b.begin(), Layer(group, rank, other, weights[rank].view()));
  for (int round = 0; round < 3; ++round) {
    for (const auto& [layers, layer_problem] : {std::pair{&a, problem}, {&b, other}}) {
      std::vector<Batch> batches{test::make_batch(problem, 9, 5), test::make_batch(problem, 2, 6)};
      ASSERT_THAT(call(*layers, batches, {10, 10}), testing::Each(""));
      for (Batch& batch : batches) {
        const auto wanted = reference::layer(layer_problem, experts, batch.x_view(), batch.routing());
        EXPECT_LE(reference::relative_l2(batch.output(problem), wanted), test::tolerance(problem.dtype));
      }
    }
  }
}

TEST(CppApi, ranks_that_call_their_layers_in_another_order_are_told) {
  const Problem problem = small_problem(2);
  World world(problem, {.deadline_seconds = 10});
  std::vector<Layer> others;
  for (int rank = 0; rank < 2; ++rank) others.emplace_back(world.group, rank, problem, world.weights[rank].view());
  std::vector<Layer> mixed;
  mixed.push_back(std::move(world.layers[0]));
  mixed.push_back(std::move(others[1]));
  std::vector<Batch> batches{test::make_batch(problem, 9, 5), test::make_batch(problem, 2, 6)};
  const auto messages = call(mixed, batches, {0, 0});
  EXPECT_THAT(messages, testing::Each(HasSubstr("every rank must call the layers of one heap in the same order")));
}

TEST(CppApi, a_dead_heap_says_what_killed_it_and_new_layers_get_a_new_one) {
  const Problem problem = small_problem(2);
  World world(problem, {.deadline_seconds = 0.2});
  std::vector<Batch> batches{test::make_batch(problem, 4, 5)};  // rank 1 never comes
  EXPECT_THAT(call(world.layers, batches, {0}),
              testing::ElementsAre(HasSubstr("rank 0's subscriber waited 0.2 s for rank 1 to enter call 0"), ""));
  Batch batch = test::make_batch(problem, 4, 5);
  EXPECT_THAT([&] { world.layers[1].forward(batch.x_view(), batch.routing(), batch.y_view()); },
              ThrowsMessage<Timeout>(AllOf(HasSubstr("heap is dead"), HasSubstr("rank 1 to enter call 0"))));

  std::vector<Layer> fresh;
  for (int rank = 0; rank < 2; ++rank) {
    fresh.emplace_back(world.group, rank, problem, world.weights[rank].view(), LayerOptions{.deadline_seconds = 20});
  }
  std::vector<Batch> again{test::make_batch(problem, 4, 5), test::make_batch(problem, 1, 5)};
  EXPECT_THAT(call(fresh, again, {0, 0}), testing::Each(""));
}

TEST(CppApi, groups_and_layers_may_be_destroyed_in_any_order) {
  const Problem problem = small_problem(2);
  for (const bool group_first : {true, false}) {
    auto world = std::make_unique<World>(problem);
    std::vector<Layer> layers = std::move(world->layers);
    std::vector<LocalWeights> weights = std::move(world->weights);
    if (group_first) world.reset();
    std::vector<Batch> batches{test::make_batch(problem, 4, 5), test::make_batch(problem, 1, 5)};
    EXPECT_THAT(call(layers, batches, {0, 0}), testing::Each(""));
    layers.erase(layers.begin());
  }
  std::optional<Group> group = Group::local(2);
  std::optional<Group> copy = group;
  group.reset();
  EXPECT_EQ(copy->num_ranks(), 2);
}

TEST(CppApi, a_thousand_layers_made_and_destroyed_leave_nothing_behind) {
  const Problem problem = small_problem(1);
  const Group group = Group::local(1);
  const test::DenseExperts experts(problem, 1);
  const LocalWeights weights(problem, experts, 0);
  Batch batch = test::make_batch(problem, 3, 1);
  for (int i = 0; i < 1000; ++i) {
    Layer layer(group, 0, problem, weights.view());
    layer.forward(batch.x_view(), batch.routing(), batch.y_view());
  }
  const auto wanted = reference::layer(problem, experts, batch.x_view(), batch.routing());
  EXPECT_LE(reference::relative_l2(batch.output(problem), wanted), test::tolerance(problem.dtype));
}

TEST(CppApi, the_cuda_backend_is_refused_where_there_is_none) {
  try {
    require_backend(BackendKind::cuda);
    GTEST_SKIP() << "this machine has the CUDA backend";
  } catch (const CudaError& error) {
    EXPECT_THROW(Group::local(2, {.backend = BackendKind::cuda}), CudaError);
    EXPECT_THROW(Group::join({.group_id = "none", .num_ranks = 2}, {.backend = BackendKind::cuda}), CudaError);
    EXPECT_THAT(error.what(), HasSubstr("cuda"));
  }
}

TEST(CppApi, processes_join_with_backend_cuda_alone) {
  EXPECT_THAT([] { Group::join({.group_id = "none", .num_ranks = 2}, {}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("a group of processes needs backend cuda, got cpu")));
}

TEST(CppApi, a_router_of_hidden_states_routes_like_its_logits) {
  // Two experts' rows pick the two elements of x.
  const std::vector<float> weight{1, 0, 0, 1}, bias{0, 0.5f};
  const Router router({.function = RouterFunction::softmax_topk, .num_experts = 2, .top_k = 1, .renormalize = true},
                      {.hidden = 2, .weight = weight.data(), .bias = bias.data()});
  const std::vector<float> x{1, 0, 0, 1, 0.4f, 0}, logits{1, 0.5f, 0, 1.5f, 0.4f, 0.5f};
  std::vector<std::int32_t> ids(3, -7), ids_of_logits(3, -7);
  std::vector<float> weights(3), weights_of_logits(3);
  router.route(DType::fp32, {x.data(), 3}, ids.data(), weights.data());
  router.route_logits(3, logits.data(), ids_of_logits.data(), weights_of_logits.data());
  EXPECT_THAT(ids, testing::ElementsAre(0, 1, 1));
  EXPECT_EQ(ids, ids_of_logits);
  EXPECT_EQ(weights, weights_of_logits);
  EXPECT_NO_THROW(router.route(DType::fp32, {}, nullptr, nullptr));
}

TEST(CppApi, a_router_takes_its_weight_in_any_type) {
  const std::vector<std::uint16_t> weight{0x3f80, 0, 0, 0x3fc0};  // bf16 {{1, 0}, {0, 1.5}}
  const Router router({.num_experts = 2, .top_k = 1}, {.hidden = 2, .weight = weight.data(), .weight_dtype = DType::bf16});
  const std::vector<float> x{1, 0.5f, 1, 0.75f};
  std::vector<std::int32_t> ids(2);
  std::vector<float> weights(2);
  router.route(DType::fp32, {x.data(), 2}, ids.data(), weights.data());
  EXPECT_THAT(ids, testing::ElementsAre(0, 1));
}

TEST(CppApi, the_cpu_has_no_streams) {
  const Problem problem = small_problem(1);
  World world(problem);
  Batch batch = test::make_batch(problem, 3, 1, test::Routing::any);
  EXPECT_THAT([&] { world.layers[0].enqueue(batch.x_view(), batch.routing(), batch.y_view(), {}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("need backend cuda")));
  world.layers[0].forward(batch.x_view(), batch.routing(), batch.y_view());
  EXPECT_NO_THROW(world.layers[0].check_calls());
  EXPECT_EQ(world.layers[0].info().device, -1);
}

TEST(CppApi, a_router_refuses_what_does_not_fit) {
  const RouterConfig config{.num_experts = 2, .top_k = 1};
  const std::vector<float> values(4);
  std::vector<std::int32_t> ids(1);
  std::vector<float> weights(1);
  EXPECT_THROW(Router(RouterConfig{}), InvalidArgument);
  EXPECT_THROW(Router(config, {.hidden = 0, .weight = values.data()}), InvalidArgument);
  EXPECT_THROW(Router(config, {.bias = values.data()}), InvalidArgument);
  EXPECT_THROW(Router(config, {.hidden = 2, .weight = values.data(), .weight_dtype = static_cast<DType>(9)}), InvalidArgument);
  EXPECT_THROW(Router(config, {}, {.backend = static_cast<BackendKind>(9)}), InvalidArgument);
  EXPECT_THROW(Router(config, {.selection_bias = values.data()}), InvalidArgument);
  EXPECT_THROW(Router(config).route(DType::fp32, {values.data(), 1}, ids.data(), weights.data()), InvalidArgument);
  EXPECT_THROW(Router(config).route_logits(1, nullptr, ids.data(), weights.data()), InvalidArgument);
  EXPECT_THROW(Router(config).route_logits(1, values.data(), nullptr, weights.data()), InvalidArgument);
  EXPECT_THROW(Router(config).route_logits(-1, values.data(), ids.data(), weights.data()), InvalidArgument);
}

}  // namespace
}  // namespace flashmoe
