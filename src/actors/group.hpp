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
  FLASHMOE_HD static Match match(int /*key*/) { return {0, 1}; }
  FLASHMOE_HD static Scan scan(std::uint32_t value) { return {0, value}; }
};

}  // namespace flashmoe
