// From slots that have landed to rows of experts: moves the `landed` cursors of a wave, which a subscriber owns and from which
// the scheduler cuts m-blocks.
#pragma once

#include <cstdint>

#include "actors/call.hpp"
#include "actors/signal.hpp"

namespace flashmoe {

/// Rows of a source's wave that have come into a slot block; in lined form parts of rows that dispatchers have landed.
struct Arrivals {
  std::uint64_t target;  ///< once all have
  std::uint64_t seen;
  FLASHMOE_HD bool complete() const { return seen >= target; }
};
/// Of a slot block of `rows` slots; the wave, of `num_slots`, lies in the source's `ring_slot`. Memory ordering: acquire.
FLASHMOE_HD inline Arrivals arrivals_of(const Call& call, int source, int wave_slot, int ring_slot, std::uint32_t block,
                                        std::uint32_t rows, std::uint32_t num_slots) {
  if (call.lined()) {
    return {std::uint64_t{rows} * static_cast<std::uint64_t>(call.row_parts(num_slots)),
            observe<Scope::device>(call.lined_arrivals(source) + block)};
  }
  const std::uint64_t target = peek(call.arrived_base(wave_slot) + block) + rows;
  const std::size_t counter = call.heap.arrival(source, ring_slot, static_cast<int>(block));
  return {target, observe<Scope::system>(call.heap_at<std::uint64_t>(counter))};
}

/// Experts of a thread whose loads are under way at once.
inline constexpr int kExpertsEach = 2;

/// low[i]: the first entry of expert i, counted from begins[i], between low[i] and high[i], whose slot has not landed. By
/// halves, the experts side by side: each look takes as long as memory does.
FLASHMOE_HD inline void find_entries(const RouteImage& image, const std::uint32_t (&begins)[kExpertsEach],
                                     std::uint32_t landed, std::uint32_t (&low)[kExpertsEach],
                                     std::uint32_t (&high)[kExpertsEach]) {
  bool found = false;
  while (!found) {
    std::uint32_t slots[kExpertsEach];
    FLASHMOE_UNROLL
    for (int i = 0; i < kExpertsEach; ++i) {
      if (low[i] < high[i]) slots[i] = image.entry(begins[i] + (low[i] + high[i]) / 2).slot;
    }
    found = true;
    FLASHMOE_UNROLL
    for (int i = 0; i < kExpertsEach; ++i) {
      if (low[i] >= high[i]) continue;
      const std::uint32_t middle = (low[i] + high[i]) / 2;
      if (slots[i] < landed) {
        low[i] = middle + 1;
      } else {
        high[i] = middle;
      }
      found = found && low[i] >= high[i];
    }
  }
}

/// An expert's landed entries are those whose slot, of the wave's `num_slots`, is below `landed`; slots ascend inside an expert.
/// When all slots have landed, the image is not read.
template <class Group>
FLASHMOE_HD void advance_cursors(const Group& group, const Call& call, int wave_slot, const RouteImage& image,
                                 std::uint32_t landed, std::uint32_t num_slots) {
  const int num_experts = call.geometry().num_local_experts;
  const std::uint32_t* offsets = call.expert_offsets(wave_slot);
  FLASHMOE_ROLLED
  for (int first = 0; first < num_experts; first += kExpertsEach * group.size()) {
    std::uint32_t* cursors[kExpertsEach];
    std::uint32_t begins[kExpertsEach];
    std::uint32_t low[kExpertsEach];
    std::uint32_t high[kExpertsEach];
    FLASHMOE_UNROLL
    for (int i = 0; i < kExpertsEach; ++i) {
      const int expert = first + i * group.size() + group.index();
      cursors[i] = nullptr;
      begins[i] = low[i] = high[i] = 0;
      if (expert >= num_experts) continue;
      cursors[i] = &call.landed(wave_slot)[expert];
      begins[i] = offsets[expert];
      high[i] = offsets[expert + 1] - begins[i];
      low[i] = landed == num_slots ? high[i] : *cursors[i] - call.wave_base(wave_slot)[expert];
    }
    find_entries(image, begins, landed, low, high);
    FLASHMOE_UNROLL
    for (int i = 0; i < kExpertsEach; ++i) {
      const int expert = first + i * group.size() + group.index();
      if (cursors[i] != nullptr) low[i] += call.wave_base(wave_slot)[expert];
    }
    publish_all(cursors, low);
  }
  group.sync();
}

}  // namespace flashmoe
