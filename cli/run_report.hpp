// What a run has shown, as JSON and as tables.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "batch.hpp"
#include "comparison.hpp"
#include "flashmoe/layer.hpp"
#include "job.hpp"

namespace flashmoe::cli {

/// What one rank's part of the batch asks of the wire, whatever the protocol.
struct RankLoad {
  std::int64_t routes_out = 0;         ///< routes of its tokens
  std::int64_t routes_in = 0;          ///< routes to its experts
  std::int64_t remote_routes_out = 0;  ///< those that end on another rank
  std::int64_t remote_routes_in = 0;   ///< those that come from another rank
};
std::vector<RankLoad> count_routes(const Batch& batch);

struct RunReport {
  std::string command;
  const Job& job;
  const LayerInfo& info;
  const std::vector<CallStats>& stats;  // [num_ranks]
  const std::vector<RankLoad>& loads;   // [num_ranks]
  const Comparison& comparison;
  bool weights_in_memory = true;        ///< else making them is part of the measured time
};

nlohmann::json to_json(const RunReport& report);
std::string to_text(const RunReport& report);

/// Every field of a problem.
nlohmann::json to_json(const Problem& problem);

}  // namespace flashmoe::cli
