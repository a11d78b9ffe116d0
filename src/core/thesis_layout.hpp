// Size of the symmetric tensor L of the FlashDMoE thesis, for comparison with our heap (`flashmoe info`).
//
// Section 5.3: L has shape [P][R][B][E][C][H]: ranks, communication rounds (dispatch, combine), staging buffers
// (outgoing, incoming), local experts, capacity, hidden. Section 5.4: C is the expert capacity aligned to the tile
// height bM = 128, so that padding happens in place. Table 6.2 takes the expert capacity as tokens / experts
// (capacity factor 1; the choices of a token do not enter). The bookkeeping bytes of that table have no formula in
// the text and are not modelled.
#pragma once

#include <cstddef>
#include <cstdint>

#include "flashmoe/problem.hpp"

namespace flashmoe {

struct ThesisLayout {
  std::int64_t expert_capacity = 0;  ///< rows one expert takes from one rank at capacity factor 1
  std::int64_t capacity = 0;         ///< C: expert_capacity aligned to the tile height
  std::int64_t size_l_bytes = 0;     ///< bytes of L on one rank

  static constexpr int kRounds = 2;          // R
  static constexpr int kStagingBuffers = 2;  // B
  static constexpr int kTileRows = 128;      // bM
  bool operator==(const ThesisLayout&) const = default;
};

/// The layout for a rank that brings problem.max_tokens tokens. Takes a problem that validate() accepts.
constexpr ThesisLayout thesis_layout(const Problem& problem) {
  constexpr int tile = ThesisLayout::kTileRows;
  ThesisLayout layout;
  layout.expert_capacity = (problem.max_tokens + problem.num_experts - 1) / problem.num_experts;
  layout.capacity = (layout.expert_capacity + tile - 1) / tile * tile;
  layout.size_l_bytes = std::int64_t{problem.num_ranks} * ThesisLayout::kRounds * ThesisLayout::kStagingBuffers *
                        problem.num_local_experts() * layout.capacity * problem.hidden *
                        static_cast<std::int64_t>(dtype_bytes(problem.dtype));
  return layout;
}

}  // namespace flashmoe
