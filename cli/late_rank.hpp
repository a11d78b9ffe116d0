// A rank that is held back, and what the others did until its tokens came.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "actors/rank_trace.hpp"
#include "batch.hpp"

namespace flashmoe::cli {

struct LateRank {
  int rank = 0;
  double us = 0;  ///< by which its call is held back
};

/// The late rank's first tokens have come for another one when that one's subscriber no longer waits for its header,
/// its first list or ids, and its first rows; the end of the header's wait where it sends none. Never later than that:
/// of a wait that other arrivals interrupt the first part counts.
struct Meanwhile {
  int rank = 0;
  double late_start_us = 0;   ///< from this rank's begin to the late one's
  double tokens_us = 0;       ///< from this rank's begin until the tokens had come; times below are within that
  double last_tile_us = 0;    ///< from this rank's begin to the end of the last up or down task begun
  double busy_share = 0;      ///< of its processors' time, that in tasks
  double product_share = 0;   ///< likewise, in up and down products: see TraceSummary
  std::int64_t up_tasks = 0;  ///< begun
  std::int64_t down_tasks = 0;
  std::int64_t m_blocks = 0;       ///< whose first up task was begun
  std::int64_t m_blocks_left = 0;  ///< at least so many more had rows that do not wait for the late rank
};

struct LateSummary {
  LateRank late;
  std::vector<Meanwhile> others;  ///< ascending ranks
};

/// Fewest m-blocks for the rows that `rank` gets from all but the late one while nothing comes from there. `rows`: most
/// of an m-block. `tokens_ahead`: tokens that a source sends before the late rank must have read some of them.
std::int64_t m_blocks_without(const Batch& batch, int rank, int late_rank, int rows, std::int64_t tokens_ahead);

/// `m_blocks`: m_blocks_without() of every rank.
LateSummary summarise_late(const std::vector<RankTrace>& ranks, const LateRank& late,
                           const std::vector<std::int64_t>& m_blocks);

nlohmann::json to_json(const LateSummary& summary);
std::string to_text(const LateSummary& summary);

}  // namespace flashmoe::cli
