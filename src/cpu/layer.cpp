#include "cpu/layer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "cpu/drive.hpp"
#include "flashmoe/error.hpp"

namespace flashmoe::cpu {

namespace {

/// How long a rank that gives up waits for the others' records.
double grace_seconds(double deadline_seconds) { return std::clamp(deadline_seconds / 4, 0.05, 1.0); }

void check_input(const Problem& problem, const CallInput& input) {
  const std::int64_t num_tokens = input.x.num_rows;
  if (num_tokens < 0 || num_tokens > input.max_tokens) {
    throw InvalidArgument(fmt::format("num_tokens ({}) must be in 0..{}, the max_tokens of the call: raise max_tokens on "
                                      "all ranks or split the batch",
                                      num_tokens, input.max_tokens));
  }
  if (input.y.num_rows != num_tokens) {
    throw InvalidArgument(fmt::format("y has {} rows, wanted {} as x has: pass an output of x's shape",
                                      input.y.num_rows, num_tokens));
  }
  if (num_tokens > 0 && (input.x.data == nullptr || input.y.data == nullptr || input.routing.topk_ids == nullptr ||
                         input.routing.topk_weights == nullptr)) {
    throw InvalidArgument(fmt::format("x, y, topk_ids and topk_weights must not be null for {} tokens of {} elements: "
                                      "pass all four", num_tokens, problem.hidden));
  }
}

}  // namespace

EngineTraits engine_traits() {
  return {.tile = {.rows = 32, .up_columns = 64, .down_columns = 128, .extra_rows = 16},
          .num_m_blocks = 32,
          .listed_routes = 8192};  // as on Hopper GPUs: src/cuda/hopper/tile_shape.hpp
}

RankContext::RankContext(std::shared_ptr<Heap> heap, int rank, const RankOptions& options)
    : heap_(std::move(heap)),
      rank_(rank),
      options_(options),
      local_layout_(make_local_layout(heap_->layout().geometry, options.roster)),
      local_(local_layout_.total_bytes) {
  const Call call = make_call();
  for (int block = 0; block < local_layout_.geometry.num_m_blocks; ++block) {
    call.m_block(static_cast<std::uint32_t>(block)) = MBlock{};
  }
}

Call RankContext::make_call() const {
  Call call;
  call.heap = heap_->layout();
  call.local_layout = local_layout_;
  std::copy_n(heap_->bases(), local_layout_.geometry.num_ranks, call.heap_base);
  call.local = local_.data();
  call.rank = rank_;
  call.generation = heap_->generation();
  call.epoch = call.epoch_state().epoch;
  call.roster = options_.roster;
  call.flush_after_idle_steps = options_.flush_after_idle_steps;
  return call;
}

ExpertMath expert_math(const Problem& problem) {
  return {.dtype = problem.dtype,
          .activation = problem.activation,
          .gated = problem.gated,
          .up_bias = problem.up_bias,
          .down_bias = problem.down_bias,
          .weight_on_input = problem.weight_on_input,
          .swiglu_alpha = problem.swiglu_alpha,
          .swiglu_limit = problem.swiglu_limit};
}

Call make_call(const RankContext& context, const Problem& problem, std::uint64_t layer_id, const CallInput& input) {
  Call call = context.make_call();
  call.layer_id = layer_id;
  call.plan = plan_call(problem, call.geometry(), input.max_tokens);
  call.plan.tickets_at_once = 1;  // processors of the emulator take tasks one by one, whatever the geometry's tile says
  call.plan_hash = plan_hash(call.geometry(), call.plan);
  call.math = expert_math(problem);
  call.x = input.x.data;
  call.topk_ids = input.routing.topk_ids;
  call.topk_weights = input.routing.topk_weights;
  call.y = input.y.data;
  call.num_tokens = input.x.num_rows;
  return call;
}

Layer::Layer(std::shared_ptr<RankContext> context, const Problem& problem,
             std::shared_ptr<const ExpertSource> experts, std::uint64_t layer_id)
    : context_(std::move(context)), problem_(problem), experts_(std::move(experts)), layer_id_(layer_id) {
  for (int i = 0; i < context_->options().roster.num_processors; ++i) {
    engines_.emplace_back(context_->heap().layout().geometry, expert_math(problem_), *experts_);
  }
}

CallStats Layer::forward(const CallInput& input, double deadline_seconds, RankTrace* trace) {
  const std::lock_guard lock(context_->mutex());
  Heap& heap = context_->heap();
  if (const auto death = heap.death()) {
    throw Timeout(fmt::format("this layer's heap is dead since call {}: {}; destroy the layers on it and create new ones",
                              context_->make_call().epoch,
                              describe(*death, deadline_seconds, problem_.top_k, problem_.num_experts)));
  }
  check_input(problem_, input);
  const Call call = make_call(*context_, problem_, layer_id_, input);
  RankProgram<Fabric> program(call, engines_, [&](Traffic* traffic) {
    return Fabric(heap.bases(), call.rank, traffic);
  });
  DriveResult result = drive(program, call, heap, {.num_threads = context_->options().num_threads,
                                                   .deadline_seconds = deadline_seconds,
                                                   .trace = trace});
  if (!result.finished) {
    const Stall culprit = settle_stall(call, heap, *result.stall, grace_seconds(deadline_seconds));
    heap.kill(culprit);
    if (result.exception) std::rethrow_exception(result.exception);
    throw_stall(culprit, call.rank, deadline_seconds, problem_.top_k, problem_.num_experts);
  }
  CallStats stats{.plan = call.plan, .epoch = call.epoch, .traffic = program.traffic(), .phases = result.phases};
  finish_epoch(call);
  return stats;
}

}  // namespace flashmoe::cpu
