#include "api/group_state.hpp"

#include <fmt/format.h>

#include <cmath>
#include <sstream>
#include <string>

#include "flashmoe/error.hpp"

namespace flashmoe {

namespace {

constexpr int kMostActors = 64;
constexpr int kMostThreads = 256;
constexpr double kLongestDeadline = 1e6;

void require_count(const char* name, int got, int low, int high) {
  if (got >= low && got <= high) return;
  throw InvalidArgument(fmt::format("{} ({}) must be between {} and {}: leave the default of 1 unless cores are idle", name,
                                    got, low, high));
}

void check_options(int num_ranks, const GroupOptions& options) {
  if (num_ranks < 1 || num_ranks > Limits::num_ranks) {
    throw InvalidArgument(fmt::format("num_ranks ({}) must be between 1 and {}: give the number of ranks of the group",
                                      num_ranks, Limits::num_ranks));
  }
  if (options.backend != BackendKind::cpu && options.backend != BackendKind::cuda) {
    throw InvalidArgument(fmt::format("backend (number {}) must be one of cpu, cuda: use a named enumerator",
                                      static_cast<int>(options.backend)));
  }
  if (!(options.deadline_seconds > 0) || options.deadline_seconds > kLongestDeadline) {
    throw InvalidArgument(fmt::format("deadline_seconds ({}) must be above 0 and at most {}: give the seconds after which "
                                      "a call in which nothing happens has failed", options.deadline_seconds,
                                      kLongestDeadline));
  }
  require_count("num_dispatchers", options.num_dispatchers, 1, kMostActors);
  require_count("num_processors", options.num_processors, 1, kMostActors);
  require_count("num_threads", options.num_threads, 0, kMostThreads);
}

}  // namespace

GroupState::GroupState(int num_ranks, const GroupOptions& options) : options_(options) {
  check_options(num_ranks, options);
  backend_ = make_backend(options);
  ranks_ = std::vector<Rank>(static_cast<std::size_t>(num_ranks));
}

GroupState::CreatedLayer GroupState::create_layer(int rank, const Problem& problem, const RankWeights& weights) {
  Rank& own = ranks_[static_cast<std::size_t>(rank)];
  const std::lock_guard lock(own.creation);
  const std::uint64_t layer_id = own.num_layers + 1;
  std::shared_ptr<SharedHeap> heap = enter(layer_id, rank, problem);
  try {
    std::unique_ptr<RankLayer> layer = heap->make_layer(rank, problem, weights, layer_id);
    leave(layer_id, true);
    ++own.num_layers;
    return {std::move(layer), std::move(heap)};
  } catch (...) {
    leave(layer_id, false);
    throw;
  }
}

std::shared_ptr<SharedHeap> GroupState::enter(std::uint64_t layer_id, int rank, const Problem& problem) {
  const std::lock_guard lock(mutex_);
  const auto found = pending_.find(layer_id);
  if (found == pending_.end()) {
    Pending pending{.problem = problem, .first_rank = rank, .heap = find_or_make_heap(problem), .num_users = 1};
    return pending_.emplace(layer_id, std::move(pending)).first->second.heap;
  }
  Pending& pending = found->second;
  if (hash(pending.problem) != hash(problem)) {
    throw FabricError(fmt::format("layer {} must be the same on all ranks, but {}: give every rank the same problem",
                                  layer_id, describe_difference(pending.problem, pending.first_rank, problem, rank)));
  }
  ++pending.num_users;
  return pending.heap;
}

void GroupState::leave(std::uint64_t layer_id, bool created) {
  const std::lock_guard lock(mutex_);
  Pending& pending = pending_.at(layer_id);
  if (created) {
    ++pending.num_created;
  } else {
    --pending.num_users;
  }
  if (pending.num_users == 0 || pending.num_created == num_ranks()) pending_.erase(layer_id);
}

std::shared_ptr<SharedHeap> GroupState::find_or_make_heap(const Problem& problem) {
  const Geometry geometry = plan_geometry(problem, backend_->engine_traits(problem));
  std::erase_if(heaps_, [](const auto& heap) { return heap.expired(); });
  for (const auto& weak : heaps_) {
    std::shared_ptr<SharedHeap> heap = weak.lock();
    if (heap && heap->layout().geometry == geometry && !heap->dead()) return heap;
  }
  std::shared_ptr<SharedHeap> heap = backend_->make_heap(geometry);
  heaps_.push_back(heap);
  return heap;
}

std::string describe_difference(const Problem& a, int rank_a, const Problem& b, int rank_b) {
  std::istringstream fields_a(to_string(a));
  std::istringstream fields_b(to_string(b));
  std::string field_a;
  std::string field_b;
  while (fields_a >> field_a && fields_b >> field_b) {
    if (field_a == field_b) continue;
    const std::size_t equals = field_a.find('=');
    return fmt::format("{} is {} on rank {} and {} on rank {}", field_a.substr(0, equals), field_a.substr(equals + 1),
                       rank_a, field_b.substr(field_b.find('=') + 1), rank_b);
  }
  return fmt::format("ranks {} and {} agree", rank_a, rank_b);
}

}  // namespace flashmoe
