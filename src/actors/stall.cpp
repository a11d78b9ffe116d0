#include "actors/stall.hpp"

#include <fmt/format.h>

#include "flashmoe/error.hpp"

namespace flashmoe {

std::vector<Stall> posted_stalls(const Call& call) {
  std::vector<Stall> posted(static_cast<std::size_t>(call.geometry().num_ranks));
  for (int rank = 0; rank < call.geometry().num_ranks; ++rank) {
    std::uint64_t words[kStallWords];
    const auto* line = call.heap_at<const Line>(call.heap.stall_record(rank));
    const std::uint64_t tag = observe<Scope::system>(&line->tag);
    if (tag >> 48 != call.generation || !try_load_lines(SoloGroup{}, line, kStallWords, tag, words)) continue;
    posted[static_cast<std::size_t>(rank)] = decode_stall(words);
  }
  return posted;
}

bool is_own_input(const Stall& stall, int rank) {
  return stall.rank == rank &&
         (stall.wait.signal == SignalKind::wrong_id || stall.wait.signal == SignalKind::wrong_count);
}

Stall explain(const std::vector<Stall>& posted, int rank) {
  const Stall& own = posted[static_cast<std::size_t>(rank)];
  if (is_own_input(own, rank)) return own;
  const auto score = [&](const Stall& stall) {
    // Lower is better: fault, wait for a silent rank, wait for a rank that waits itself, wait inside the rank.
    const SignalKind kind = stall.wait.signal;
    if (is_fault(kind)) return 0;
    if (!is_remote(kind)) return 3;
    const bool peer_posted = posted[static_cast<std::size_t>(stall.wait.peer)].rank >= 0;
    return peer_posted ? 2 : 1;
  };
  const Stall* best = nullptr;
  for (const Stall& stall : posted) {
    if (stall.rank < 0) continue;
    if (best == nullptr || score(stall) < score(*best) ||
        (score(stall) == score(*best) && outranks(stall.wait, best->wait))) {
      best = &stall;
    }
  }
  return best != nullptr ? *best : Stall{};
}

std::string describe(const Stall& stall, double deadline_seconds, int top_k, int num_experts, bool gpu_is_shared) {
  const Wait& wait = stall.wait;
  switch (wait.signal) {
    case SignalKind::rank_failed: return fmt::format("rank {} failed and took the call with it; its own error says why", stall.rank);
    case SignalKind::wrong_id:
      return fmt::format("topk_ids[{}][{}] of rank {} is {}, wanted -1 (masked) or 0..{}: check that the ids are global "
                         "expert ids of this layer",
                         wait.expected / static_cast<std::uint64_t>(top_k), wait.expected % static_cast<std::uint64_t>(top_k),
                         stall.rank, static_cast<std::int64_t>(wait.seen), num_experts - 1);
    case SignalKind::wrong_count:
      return fmt::format("num_tokens of rank {} is {} in device memory, wanted 0..{}, the rows of x: give the call more rows or fewer tokens", stall.rank,
                         static_cast<std::int64_t>(wait.seen), wait.expected);
    case SignalKind::wrong_layer:
      return fmt::format("rank {} called layer {} while rank {} called layer {}: every rank must call the layers of one "
                         "heap in the same order", stall.rank, wait.expected, wait.peer, wait.seen);
    case SignalKind::wrong_plan:
      return fmt::format("rank {} runs plan {:016x} and rank {} plan {:016x}: max_tokens of the call must be the same on "
                         "all ranks", stall.rank, wait.expected, wait.peer, wait.seen);
    case SignalKind::header:
      return fmt::format(
          "rank {}'s {} waited {:.3g} s for rank {} to enter call {}, and its header did not come: check "
          "that it is alive and makes the same calls{}",
          stall.rank, to_string(stall.actor), deadline_seconds, wait.peer, wait.expected,
          gpu_is_shared ? ", and, as ranks share a GPU, that between their launches nothing synchronises the device or "
                          "loads code (a kernel's first use, memory or a layer given back) and no other group runs there"
                        : "");
    default: break;
  }
  if (is_remote(wait.signal)) {
    return fmt::format("rank {}'s {} waited {:.3g} s for {} of rank {} (wanted {}, saw {}): rank {} entered the call and "
                       "then stopped; check its own error, or raise the deadline if it is merely slow",
                       stall.rank, to_string(stall.actor), deadline_seconds, to_string(wait.signal), wait.peer,
                       wait.expected, wait.seen, wait.peer);
  }
  return fmt::format("rank {}'s {} waited {:.3g} s for {} inside its own rank (wanted {}, saw {}): no peer is late, so "
                     "raise the deadline if the machine is merely slow, else report this", stall.rank,
                     to_string(stall.actor), deadline_seconds, to_string(wait.signal), wait.expected, wait.seen);
}

void throw_stall(const Stall& stall, int rank, double deadline_seconds, int top_k, int num_experts,
                 bool gpu_is_shared) {
  const std::string text = describe(stall, deadline_seconds, top_k, num_experts, gpu_is_shared);
  if (is_own_input(stall, rank)) throw InvalidArgument(text);
  if (is_fault(stall.wait.signal)) throw FabricError(text);
  throw Timeout(text);
}

}  // namespace flashmoe
