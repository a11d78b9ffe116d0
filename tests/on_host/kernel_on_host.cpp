#include "on_host/kernel_on_host.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <deque>

#include "on_host/cuda_builtins.hpp"
#include "support/poison.hpp"
// Before device code, which is left out elsewhere:
#define __CUDA_ARCH_FEAT_SM90_ALL
#include "cuda/hopper/kernel.cuh"
#include "cuda/kernel_table.hpp"

namespace flashmoe::on_host {

using namespace cuda_backend;

namespace {

constexpr std::uint64_t kMostTurns = 400'000'000;

using Function = void (*)(KernelArgs, hopper::TensorMaps);
Function function_of(DType dtype, bool pairs) {
  if (dtype == DType::bf16)
    return pairs ? &hopper::moe_kernel<DType::bf16, true> : &hopper::moe_kernel<DType::bf16, false>;
  return pairs ? &hopper::moe_kernel<DType::fp16, true> : &hopper::moe_kernel<DType::fp16, false>;
}

}  // namespace

Ranks::Ranks(const Problem& problem, const Geometry& geometry, std::shared_ptr<const ExpertSource> experts,
             const Options& options)
    : problem_(problem),
      options_(options),
      experts_(std::move(experts)),
      heap_(std::make_shared<cpu::Heap>(geometry)),
      states_(static_cast<std::size_t>(geometry.num_ranks)),
      outcomes_(static_cast<std::size_t>(geometry.num_ranks)) {
  const cpu::RankOptions rank_options{.roster = roster_of(geometry, options.num_blocks, hopper::kServiceWarps),
                                      .flush_after_idle_steps = options.flush_after_idle_steps};
  for (int rank = 0; rank < geometry.num_ranks; ++rank) {
    contexts_.push_back(std::make_unique<cpu::RankContext>(heap_, rank, rank_options));
    weights_.emplace_back(problem, *experts_, rank);
  }
}
Ranks::~Ranks() = default;

/// A rank's tensors of a call whose count the host does not know: rows for the most that there may be.
class Ranks::Counted {
 public:
  Counted(const Problem& problem, const cpu::CallInput& input) : input_(input), num_tokens_(input.x.num_rows) {
    const auto row_bytes = static_cast<std::size_t>(problem.hidden) * dtype_bytes(problem.dtype);
    const auto rows = static_cast<std::size_t>(input.max_tokens);
    const auto routes = static_cast<std::size_t>(num_tokens_ * problem.top_k);
    bytes_ = static_cast<std::size_t>(num_tokens_) * row_bytes;
    x_.assign(rows * row_bytes, static_cast<char>(test::kPoison));
    y_ = x_;
    ids_.assign(rows * static_cast<std::size_t>(problem.top_k), 0x7f7f7f7f);
    weights_.resize(ids_.size());
    std::copy_n(static_cast<const char*>(input.x.data), bytes_, x_.begin());
    std::copy_n(input.routing.topk_ids, routes, ids_.begin());
    std::copy_n(input.routing.topk_weights, routes, weights_.begin());
  }

  void enter(KernelArgs& args) {
    args.num_tokens = &num_tokens_;
    args.call.num_tokens = input_.max_tokens;
    args.call.x = x_.data();
    args.call.topk_ids = ids_.data();
    args.call.topk_weights = weights_.data();
    args.call.y = y_.data();
  }
  /// Throws std::logic_error where rows behind them have been written.
  void take_results() const {
    const auto end = y_.begin() + static_cast<std::ptrdiff_t>(bytes_);
    if (!std::all_of(end, y_.end(), [](char byte) { return byte == static_cast<char>(test::kPoison); })) {
      throw std::logic_error("rows behind the last token have been written");
    }
    std::copy(y_.begin(), end, static_cast<char*>(input_.y.data));
  }

 private:
  const cpu::CallInput& input_;
  std::int64_t num_tokens_;
  std::size_t bytes_;  ///< of rows that there are
  std::vector<char> x_, y_;
  std::vector<std::int32_t> ids_;
  std::vector<float> weights_;
};

std::string Ranks::failure(int rank) const {
  const Outcome& outcome = this->outcome(rank);
  return outcome.failed == 0 ? ""
                             : describe(outcome.stall, options_.deadline_seconds, problem_.top_k, problem_.num_experts);
}

/// Calls of all ranks that begin together.
class Ranks::Run {
 public:
  Run(Ranks& ranks, const std::vector<std::vector<cpu::CallInput>>& calls, std::uint64_t seed)
      : ranks_(ranks),
        calls_(calls),
        device_(seed, kMostTurns, {kBlockTeams, kBlockTeams * static_cast<std::size_t>(ranks.options_.num_blocks)}) {}

  void run() {
    for (std::size_t rank = 0; rank < calls_.size(); ++rank) launch(rank, 0);
    device_.run();
    for (const Counted& of_call : counted_) of_call.take_results();
  }

 private:
  static constexpr std::size_t kBlockTeams = hopper::kBlockThreads / kWarpThreads + 1;  // its copies are one

  void launch(std::size_t rank, std::size_t call) {
    if (call == calls_[rank].size()) return;
    const Options& options = ranks_.options_;
    const KernelArgs args = make_args(rank, calls_[rank][call]);
    const auto maps = std::make_shared<const hopper::TensorMaps>(
        hopper::layer_boxes(ranks_.problem_, args.call.geometry(), args.weights, args.call.intermediate_row(0, 0)));
    const auto kernel = [args, maps, run = function_of(ranks_.problem_.dtype, options.pairs)] { run(args, *maps); };
    device_.add({.name = fmt::format("call {} rank {}", call, rank),
                 .num_blocks = options.num_blocks,
                 .num_threads = hopper::kBlockThreads,
                 .shared_bytes = sizeof(hopper::BlockMemory),
                 .pairs = options.pairs,
                 .kernel = kernel,
                 .then = [this, rank, call] { launch(rank, call + 1); }});
  }

  KernelArgs make_args(std::size_t rank, const cpu::CallInput& input) {
    const Options& options = ranks_.options_;
    KernelArgs args;
    args.call = cpu::make_call(*ranks_.contexts_[rank], ranks_.problem_, 0, input);
    args.call.plan.tickets_at_once = options.pairs ? 2 : 1;
    if (options.down_tiles > 0) {
      args.call.plan.down_tiles = options.down_tiles;
      args.call.plan.halved_down_tiles = options.halved_down_tiles;
    }
    TileShape& tile = args.call.heap.geometry.tile;  // as cuda/layer.cpp
    tile.narrow_rows = std::min(tile.narrow_rows, options.decode_rows);
    tile.half_rows = std::min(tile.half_rows, options.decode_rows);
    tile.tagged_rows = std::min(tile.tagged_rows, options.decode_rows);
    args.deadline_ns = static_cast<std::uint64_t>(options.deadline_seconds * 1e9);
    args.decode_rows = options.decode_rows;
    args.early_push = options.early_push;
    args.early_cut = options.early_cut;
    args.state = &ranks_.states_[rank];
    args.outcome = &ranks_.outcomes_[rank];
    args.weights = ranks_.weights_[rank].view();
    if (options.counts_on_device) counted_.emplace_back(ranks_.problem_, input).enter(args);
    return args;
  }

  Ranks& ranks_;
  const std::vector<std::vector<cpu::CallInput>>& calls_;
  Device device_;
  std::deque<Counted> counted_;
};

void Ranks::run(const std::vector<std::vector<cpu::CallInput>>& calls, std::uint64_t seed) {
  Run(*this, calls, seed).run();
}

}  // namespace flashmoe::on_host
