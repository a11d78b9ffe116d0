// How ranks agree on who was late. A rank that gives up writes its record into every rank's heap and then raises its
// abort word there; ranks that see an abort add their own record before they leave; the survivors then name the rank
// that explains the others.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "actors/call.hpp"
#include "actors/line_io.hpp"
#include "actors/step.hpp"

namespace flashmoe {

inline constexpr int kStallWords = 5;

/// The record as it crosses the fabric.
FLASHMOE_HD inline void encode(const Stall& stall, std::uint64_t (&words)[kStallWords]) {
  words[0] = static_cast<std::uint64_t>(stall.rank);
  words[1] = static_cast<std::uint64_t>(stall.actor);
  words[2] = static_cast<std::uint64_t>(stall.wait.signal) |
             (static_cast<std::uint64_t>(static_cast<std::uint32_t>(stall.wait.peer)) << 32);
  words[3] = stall.wait.expected;
  words[4] = stall.wait.seen;
}

inline Stall decode_stall(const std::uint64_t (&words)[kStallWords]) {
  return {.rank = static_cast<int>(words[0]),
          .actor = static_cast<Actor>(words[1]),
          .wait = {.signal = static_cast<SignalKind>(words[2] & 0xff),
                   .peer = static_cast<int>(static_cast<std::uint32_t>(words[2] >> 32)),
                   .expected = words[3],
                   .seen = words[4]}};
}

/// Writes this rank's record into every heap (its own too), then raises its abort word there.
template <class Fabric>
void raise_abort(const Call& call, Fabric& fabric, const Stall& stall) {
  std::uint64_t words[kStallWords];
  encode(stall, words);
  for (int peer = 0; peer < call.geometry().num_ranks; ++peer) {
    fabric.put_lines(SoloGroup{}, peer, call.heap.stall_record(call.rank), words, kStallWords,
                     line_tag(call.generation, call.epoch));
    fabric.signal(peer, call.heap.abort(call.rank), 1);
  }
}

/// Whether any rank has given up on this heap.
FLASHMOE_HD inline bool aborted(const Call& call) {
  for (int rank = 0; rank < call.geometry().num_ranks; ++rank) {
    if (observe<Scope::system>(call.heap_at<std::uint64_t>(call.heap.abort(rank))) != 0) return true;
  }
  return false;
}

/// Records that have reached this rank's heap, by rank; rank -1 where there is none.
std::vector<Stall> posted_stalls(const Call& call);

/// Whether the record is about what rank `rank` itself passed in: a wrong id or count.
bool is_own_input(const Stall& stall, int rank);

/// The record that explains the others to rank `rank`: its own wrong input; then faults; then waits for a rank that left
/// no record itself, because it never came or died; among equals the kind that outranks, then the lowest rank.
Stall explain(const std::vector<Stall>& posted, int rank);

/// One sentence: who waited for what from whom, what was seen, what to check. `deadline_seconds` is the limit that
/// passed; `gpu_is_shared`: another rank's kernels run on this rank's GPU.
std::string describe(const Stall& stall, double deadline_seconds, int top_k, int num_experts,
                     bool gpu_is_shared = false);

/// Throws what the record means to rank `rank`: InvalidArgument (its own wrong id or count), FabricError (disagreement, or
/// a fault of another rank), Timeout (waits).
[[noreturn]] void throw_stall(const Stall& stall, int rank, double deadline_seconds, int top_k, int num_experts,
                              bool gpu_is_shared = false);

}  // namespace flashmoe
