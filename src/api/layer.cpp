#include "flashmoe/layer.hpp"

#include <fmt/format.h>

#include <cstdint>

#include "api/checks.hpp"
#include "api/dense_weights.hpp"
#include "api/group_state.hpp"
#include "api/layer_factory.hpp"
#include "flashmoe/error.hpp"

namespace flashmoe {

struct Layer::State {
  Problem problem;
  int rank = 0;
  double deadline_seconds = 0;
  std::shared_ptr<SharedHeap> heap;
  std::unique_ptr<RankLayer> layer;
  LayerInfo info;
};

namespace {

void check_problem(const Group& group, const Problem& problem) {
  validate(problem);
  if (problem.num_ranks != group.num_ranks()) {
    throw InvalidArgument(fmt::format("problem.num_ranks ({}) must be the group's num_ranks ({}): make the group for as "
                                      "many ranks as share the experts", problem.num_ranks, group.num_ranks()));
  }
}

double choose_deadline(const LayerOptions& options, const Group& group) {
  if (options.deadline_seconds == 0) return group.options().deadline_seconds;
  check_seconds("deadline_seconds", options.deadline_seconds,
                "a call in which nothing happens has failed, or 0 for the group's");
  return options.deadline_seconds;
}

LayerInfo describe_layer(const Problem& problem, int rank, const HeapLayout& layout, const Backend& backend) {
  const Geometry& geometry = layout.geometry;
  const CallPlan plan = plan_call(problem, geometry, problem.max_tokens);
  LayerInfo info{.engine = backend.engine_name(problem),
                 .device = backend.device_of(rank),
                 .plan = explain_plan(problem, geometry, plan),
                 .wire_form = plan.wire_form,
                 .result_form = plan.result_form,
                 .wave_tokens = geometry.wave_tokens,
                 .wave_ring = geometry.wave_ring,
                 .lined_tokens = geometry.lined_tokens,
                 .heap_bytes = layout.total_bytes,
                 .local_bytes = backend.local_bytes(geometry),
                 .heap_regions = {}};
  for (int region = 0; region < kNumHeapRegions; ++region) {
    info.heap_regions.push_back({std::string(to_string(static_cast<HeapRegion>(region))), layout.region_offset[region],
                                 layout.region_bytes[region]});
  }
  return info;
}

bool overlap(const void* a, std::int64_t bytes_a, const void* b, std::int64_t bytes_b) {
  const auto first_a = reinterpret_cast<std::uintptr_t>(a);
  const auto first_b = reinterpret_cast<std::uintptr_t>(b);
  return first_a < first_b + static_cast<std::uintptr_t>(bytes_b) && first_b < first_a + static_cast<std::uintptr_t>(bytes_a);
}

void check_tensors(const Problem& problem, const ConstRows& x, const RoutingView& routing, const Rows& y,
                   std::int64_t max_tokens) {
  if (max_tokens < 0 || max_tokens > problem.max_tokens) {
    throw InvalidArgument(fmt::format("max_tokens of the call ({}) must be in 0..{}, the layer's max_tokens: build the "
                                      "layer with a larger one", max_tokens, problem.max_tokens));
  }
  const std::int64_t most = max_tokens == 0 ? problem.max_tokens : max_tokens;
  if (x.num_rows < 0 || x.num_rows > most) {
    throw InvalidArgument(fmt::format("num_tokens ({}) must be in 0..{}, the max_tokens of the call: raise max_tokens on "
                                      "all ranks or split the batch", x.num_rows, most));
  }
  if (y.num_rows != x.num_rows) {
    throw InvalidArgument(fmt::format("y has {} rows, wanted {} as x has: pass an output of x's shape", y.num_rows,
                                      x.num_rows));
  }
  if (x.num_rows == 0) return;
  const std::size_t element = dtype_bytes(problem.dtype);
  check_pointer("x", x.data, element);
  check_pointer("y", y.data, element);
  check_pointer("topk_ids", routing.topk_ids, sizeof(std::int32_t));
  check_pointer("topk_weights", routing.topk_weights, sizeof(float));
  const std::int64_t rows_bytes = x.num_rows * problem.hidden * static_cast<std::int64_t>(element);
  const std::int64_t routes_bytes = x.num_rows * problem.top_k * 4;
  const auto refuse_overlap = [&](const char* name, const void* input, std::int64_t bytes) {
    if (!overlap(y.data, rows_bytes, input, bytes)) return;
    throw InvalidArgument(fmt::format("y must not overlap {}: pass an output of its own", name));
  };
  refuse_overlap("x", x.data, rows_bytes);
  refuse_overlap("topk_ids", routing.topk_ids, routes_bytes);
  refuse_overlap("topk_weights", routing.topk_weights, routes_bytes);
}

}  // namespace

std::unique_ptr<Layer::State> LayerFactory::make_state(const Group& group, int rank, const Problem& problem,
                                                       const RankWeights& weights, const LayerOptions& options) {
  check_problem(group, problem);
  group.state_->require_rank(rank);
  if (const auto* view = std::get_if<WeightsView>(&weights)) check_weights(problem, *view);
  auto state = std::make_unique<Layer::State>();
  state->problem = problem;
  state->rank = rank;
  state->deadline_seconds = choose_deadline(options, group);
  GroupState::CreatedLayer created = group.state_->create_layer(rank, problem, weights);
  state->heap = std::move(created.heap);
  state->layer = std::move(created.layer);
  state->info = describe_layer(problem, rank, state->heap->layout(), group.state_->backend());
  return state;
}

Layer LayerFactory::make(const Group& group, int rank, const Problem& problem,
                         std::shared_ptr<const ExpertSource> experts, const LayerOptions& options) {
  return Layer(make_state(group, rank, problem, std::move(experts), options));
}

std::shared_ptr<const LoadedExperts> LayerFactory::load(const Group& group, int rank, const Problem& problem,
                                                        std::shared_ptr<const ExpertSource> experts) {
  check_problem(group, problem);
  group.state_->require_rank(rank);
  return group.state_->backend().load(rank, problem, std::move(experts));
}

Layer LayerFactory::make(const Group& group, int rank, const Problem& problem,
                         std::shared_ptr<const LoadedExperts> experts, const LayerOptions& options) {
  return Layer(make_state(group, rank, problem, std::move(experts), options));
}

LayerInfo LayerFactory::plan(const Group& group, const Problem& problem) {
  check_problem(group, problem);
  const Backend& backend = group.state_->backend();
  return describe_layer(problem, 0, make_heap_layout(plan_geometry(problem, backend.engine_traits(problem))), backend);
}

int LayerFactory::m_block_rows(const Group& group, const Problem& problem) {
  check_problem(group, problem);
  return group.state_->backend().engine_traits(problem).tile.most_rows();
}

std::unique_ptr<PreparedCalls> LayerFactory::prepare_calls(const Layer& layer, ConstRows x, RoutingView routing, Rows y,
                                                           const Repetition& repetition) {
  const Layer::State& state = *layer.state_;
  check_tensors(state.problem, x, routing, y, 0);
  return state.layer->prepare_calls({.x = x, .routing = routing, .y = y, .max_tokens = state.problem.max_tokens},
                                    {.replay = repetition.replay,
                                     .most_calls = repetition.most_calls,
                                     .deadline_seconds = state.deadline_seconds,
                                     .hold_last_us = repetition.hold_last_us});
}

void LayerFactory::trace_to(const Layer& layer, RankTrace* trace) { layer.state_->layer->trace_to(trace); }

Layer::Layer(const Group& group, int rank, const Problem& problem, const WeightsView& local_weights,
             const LayerOptions& options)
    : Layer(LayerFactory::make_state(group, rank, problem, local_weights, options)) {}

Layer::Layer(std::unique_ptr<State> state) : state_(std::move(state)) {}
Layer::~Layer() = default;
Layer::Layer(Layer&&) noexcept = default;
Layer& Layer::operator=(Layer&&) noexcept = default;

CallStats Layer::forward(ConstRows x, RoutingView routing, Rows y, std::int64_t max_tokens) {
  check_tensors(state_->problem, x, routing, y, max_tokens);
  return state_->layer->forward({.x = x,
                                 .routing = routing,
                                 .y = y,
                                 .max_tokens = max_tokens == 0 ? state_->problem.max_tokens : max_tokens},
                                state_->deadline_seconds);
}

void Layer::enqueue(ConstRows x, RoutingView routing, Rows y, const StreamCall& where) {
  check_tensors(state_->problem, x, routing, y, where.max_tokens);
  state_->layer->enqueue({.x = x,
                          .routing = routing,
                          .y = y,
                          .max_tokens = where.max_tokens == 0 ? state_->problem.max_tokens : where.max_tokens},
                         where, state_->deadline_seconds);
}

void Layer::check_calls() const { state_->layer->check_calls(); }

const LayerInfo& Layer::info() const { return state_->info; }
const Problem& Layer::problem() const { return state_->problem; }
int Layer::rank() const { return state_->rank; }

}  // namespace flashmoe
