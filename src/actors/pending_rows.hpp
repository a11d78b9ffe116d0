// Rows of experts that have landed and are in no m-block yet.
#pragma once

#include <cstdint>

#include "actors/call.hpp"
#include "actors/signal.hpp"

namespace flashmoe {

/// pending[i]: those of expert `expert` + i * the group's size, in all wave slots; 0 where there is no such expert. Loads of up
/// to four (slot, expert) pairs are under way at once.
template <class Group, int kExperts>
FLASHMOE_HD void read_pending(const Group& group, const Call& call, int expert, std::uint32_t (&pending)[kExperts]) {
  constexpr int kSlots = 4 / kExperts;
  const int num_slots = call.num_wave_slots();
  const int apart = call.slots_apart();
  const int last = call.geometry().num_local_experts - 1;
  for (int i = 0; i < kExperts; ++i) pending[i] = 0;
  for (int base = 0; base < num_slots; base += kSlots * apart) {
    std::uint32_t landed[kSlots][kExperts];
    std::uint32_t taken[kSlots][kExperts];
    FLASHMOE_UNROLL
    for (int s = 0; s < kSlots; ++s) {
      const int slot = base + s * apart < num_slots ? base + s * apart : base;
      FLASHMOE_UNROLL
      for (int i = 0; i < kExperts; ++i) {
        const int wanted = expert + i * group.size();
        const int at = wanted < last ? wanted : last;
        landed[s][i] = peek(&call.landed(slot)[at]);
        taken[s][i] = call.taken(slot)[at];
      }
    }
    FLASHMOE_UNROLL
    for (int s = 0; s < kSlots; ++s) {
      FLASHMOE_UNROLL
      for (int i = 0; i < kExperts; ++i) {
        const bool counts = base + s * apart < num_slots && expert + i * group.size() <= last;
        pending[i] += counts ? landed[s][i] - taken[s][i] : 0;
      }
    }
  }
}

}  // namespace flashmoe
