// What every actor returns from step(), and how it says what it waits for.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/annotate.hpp"

namespace flashmoe {

/// step() never blocks: it does one bounded piece of work, or finds nothing to do.
enum class Step : std::uint8_t {
  idle,      ///< waiting; wait() says for what
  advanced,  ///< did something
  finished,  ///< nothing left in this epoch; further calls return finished
  failed,    ///< the input or a peer's header is wrong; wait() says what
};

enum class Actor : std::uint8_t { dispatcher, subscriber, scheduler, processor, combiner };

/// What an actor can wait for. In a report the first kinds outrank the later ones: a rank that is missing from the
/// start explains everything that never came after it.
enum class SignalKind : std::uint8_t {
  // Faults: seen at once, not waited for.
  rank_failed,   ///< the rank's own work failed (its exception says why)
  wrong_id,      ///< topk_ids[expected / top_k][expected % top_k] holds `seen`
  wrong_count,   ///< the rank's token count in device memory is `seen`, more than x has rows
  wrong_layer,   ///< a peer's header names another layer: expected ours, seen theirs
  wrong_plan,    ///< a peer's header names another plan
  // Waits on a peer.
  header,
  ids,
  list,
  arrival,
  row_lines,
  consumed,
  result_count,
  result_lines,
  // Waits inside the rank.
  planned,
  placed,
  pushed,
  combined,
  landed,
  stored,
  task,
  none,
};

constexpr std::string_view to_string(Actor actor) {
  constexpr std::string_view names[] = {"dispatcher", "subscriber", "scheduler", "processor", "combiner"};
  return names[static_cast<int>(actor)];
}

constexpr std::string_view to_string(SignalKind kind) {
  constexpr std::string_view names[] = {
      "rank_failed", "wrong_id",  "wrong_count", "wrong_layer",  "wrong_plan",   "header",  "ids",
      "list",        "arrival",   "row_lines",   "consumed",     "result_count", "result_lines",
      "planned",     "placed",    "pushed",      "combined",     "landed",       "stored",  "task",
      "none"};
  return names[static_cast<int>(kind)];
}

FLASHMOE_HD constexpr bool is_fault(SignalKind kind) { return kind <= SignalKind::wrong_plan; }
FLASHMOE_HD constexpr bool is_remote(SignalKind kind) {
  return kind >= SignalKind::header && kind <= SignalKind::result_lines;
}

/// What an idle actor waits for.
struct Wait {
  SignalKind signal = SignalKind::none;
  int peer = -1;  ///< the rank whose signal is missing; the actor's own rank for waits inside it
  std::uint64_t expected = 0;
  std::uint64_t seen = 0;
};

/// Why a rank gave up: the record that survivors share.
struct Stall {
  int rank = -1;
  Actor actor = Actor::dispatcher;
  Wait wait;
};

/// True when `a` explains a stop better than `b` does.
FLASHMOE_HD constexpr bool outranks(const Wait& a, const Wait& b) { return a.signal < b.signal; }

}  // namespace flashmoe
