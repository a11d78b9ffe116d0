// A benchmark's rows as JSON, CSV and a table.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "bench_measure.hpp"

namespace flashmoe::cli {

/// The parts of a bound.
nlohmann::json to_json(const RankBound& bound);

/// What tells one row of a results file from every other: layer, batch and the way it runs.
nlohmann::json identity_of(const BenchCase& bench_case);

/// The identity in a row; null where it lacks a part.
nlohmann::json identity_of_row(const nlohmann::json& row);

/// The identity, and everything measured, beside the bound of `card`: bound_card().
nlohmann::json row_of(const BenchCase& bench_case, const BenchOptions& options, const Measurement& measurement,
                      std::string_view card);

/// Whether two rows are of the same layer, batch and backend.
bool differ_in_replay_alone(const nlohmann::json& a, const nlohmann::json& b);

/// Adds to a row what another system's script answered for its case: the latency to "baselines", the rest to
/// "baseline_details", or the reason to "baseline_errors".
void add_answer(const std::string& name, nlohmann::json answer, nlohmann::json& row);

/// The identity, and why there is nothing else.
nlohmann::json failed_row_of(const BenchCase& bench_case, const std::string& reason);

/// One line a row; nested values flattened, absent ones empty.
std::string to_csv(const nlohmann::json& rows);

std::string to_table(const nlohmann::json& rows);

}  // namespace flashmoe::cli
