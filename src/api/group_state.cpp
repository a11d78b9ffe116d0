#include "api/group_state.hpp"

#include <fmt/format.h>

#include <sstream>
#include <string>

#include "api/checks.hpp"
#include "flashmoe/error.hpp"

namespace flashmoe {

namespace {

constexpr int kMostActors = 64;
constexpr int kMostThreads = 256;

void require_count(const char* name, int got, int low, int high) {
  if (got >= low && got <= high) return;
  throw InvalidArgument(fmt::format("{} ({}) must be between {} and {}: leave the default of 1 unless cores are idle", name,
                                    got, low, high));
}

/// "hidden is 64 on rank 0 and 128 on rank 1" for the first field in which they differ.
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

}  // namespace

void check_options(int num_ranks, const GroupOptions& options) {
  if (num_ranks < 1 || num_ranks > Limits::num_ranks) {
    throw InvalidArgument(fmt::format("num_ranks ({}) must be between 1 and {}: give the number of ranks of the group",
                                      num_ranks, Limits::num_ranks));
  }
  check_backend(options.backend);
  if (options.engine != EngineKind::automatic && options.backend == BackendKind::cpu) {
    throw InvalidArgument(fmt::format("engine ({}) must be automatic (auto) on backend cpu, which has one: use backend cuda",
                                      to_string(options.engine)));
  }
  if (options.first_device != 0 && options.backend == BackendKind::cpu) {
    throw InvalidArgument(fmt::format(
        "first_device ({}) must be 0 on backend cpu, which has no devices: use backend cuda", options.first_device));
  }
  check_seconds("deadline_seconds", options.deadline_seconds, "a call in which nothing happens has failed");
  check_seconds("meeting_seconds", options.meeting_seconds, "a process that has not come is missed");
  require_count("num_dispatchers", options.num_dispatchers, 1, kMostActors);
  require_count("num_processors", options.num_processors, 1, kMostActors);
  require_count("num_threads", options.num_threads, 0, kMostThreads);
}

GroupState::GroupState(int num_ranks, const GroupOptions& options) : num_ranks_(num_ranks), options_(options) {
  check_options(num_ranks, options);
}

void GroupState::require_rank(int rank) const {
  if (rank >= 0 && rank < num_ranks_) return;
  throw InvalidArgument(fmt::format("rank ({}) must be in 0..{}, the ranks of the group", rank, num_ranks_ - 1));
}

void require_same(std::uint64_t layer_id, const Problem& a, int rank_a, const Problem& b, int rank_b) {
  if (hash(a) == hash(b)) return;
  throw FabricError(fmt::format("layer {} must be the same on all ranks, but {}: give every rank the same problem", layer_id,
                                describe_difference(a, rank_a, b, rank_b)));
}

}  // namespace flashmoe
