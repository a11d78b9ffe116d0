// The threads that run one actor together. On the CPU an actor is one thread; on the GPU it is a warp or a block,
// whose group type has the same members. Every member is collective: all threads of the group call it.
#pragma once

#include <cstdint>

#include "core/annotate.hpp"

namespace flashmoe {

/// Position among the group's threads that hold the same key, and how many hold it.
struct Match {
  int index;
  int count;
};

/// Sum over the lower threads of the group, and over all of them.
struct Scan {
  std::uint32_t before;
  std::uint32_t total;
};

/// One of the values that the threads of a group hold, several rounds of one each.
struct Pick {
  int position = -1;  ///< round * size + thread; -1: there are fewer
  std::uint32_t value = 0;
  std::uint32_t total = 0;  ///< values to choose from
};

/// A group of one thread.
struct SoloGroup {
  FLASHMOE_HD static constexpr int size() { return 1; }
  FLASHMOE_HD static constexpr int index() { return 0; }
  FLASHMOE_HD static constexpr bool leader() { return true; }
  FLASHMOE_HD static void sync() {}
  FLASHMOE_HD static bool all(bool value) { return value; }
  FLASHMOE_HD static bool any(bool value) { return value; }
  template <class T>
  FLASHMOE_HD static T broadcast(T value) {
    return value;
  }
  /// The value of the one thread whose `mine` is true.
  template <class T>
  FLASHMOE_HD static T first(bool /*mine*/, T value) {
    return value;
  }
  /// The n-th value above 0, in the order of rounds and of the threads in them, from 0 on; each thread asks for its own n.
  template <int rounds>
  FLASHMOE_HD static Pick pick(const std::uint32_t (&values)[rounds], std::uint32_t n) {
    Pick picked;
    for (int round = 0; round < rounds; ++round) {
      if (values[round] == 0) continue;
      if (picked.total++ == n) {
        picked.position = round;
        picked.value = values[round];
      }
    }
    return picked;
  }
  FLASHMOE_HD static Match match(int /*key*/) { return {0, 1}; }
  FLASHMOE_HD static Scan scan(std::uint32_t value) { return {0, value}; }
  /// scan() of 1 where `mine` is true: cheaper.
  FLASHMOE_HD static Scan number(bool mine) { return {0, mine ? 1u : 0u}; }
  /// scan().total: cheaper.
  FLASHMOE_HD static std::uint32_t sum(std::uint32_t value) { return value; }
  FLASHMOE_HD static std::uint32_t least(std::uint32_t value) { return value; }
};

/// How many threads of the group, from the first on without a gap, say yes.
template <class Group>
FLASHMOE_HD std::uint32_t count_leading(const Group& group, bool mine) {
  const Scan scan = group.number(mine);
  const bool leads = mine && scan.before == static_cast<std::uint32_t>(group.index());
  return group.number(leads).total;
}

}  // namespace flashmoe
