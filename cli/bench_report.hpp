// A benchmark's rows as JSON, CSV and a table.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "bench_measure.hpp"
#include "exit_code.hpp"

namespace flashmoe::cli {

/// The parts of a bound.
nlohmann::json to_json(const RankBound& bound);

/// What tells one row of a results file from every other: layer, batch and the way it runs.
nlohmann::json identity_of(const BenchCase& bench_case);

/// The identity in a row; null where it lacks a part.
nlohmann::json identity_of_row(const nlohmann::json& row);

/// What decides the numbers of a row beside its identity: how the calls were timed, by what, over which routing.
nlohmann::json settings_of(const BenchCase& bench_case, const BenchOptions& options);

/// Tokens that a row of this case compares with the reference.
std::int64_t num_compared(const BenchCase& bench_case);

/// Why a row of the same identity is not what a run with these settings would measure, as "warm_up was 3 and is 1";
/// empty: it is. A row that compared more tokens than asked for is.
std::string difference_of(const nlohmann::json& row, const nlohmann::json& settings, std::int64_t num_compared);

/// "custom, 16 tokens a rank".
std::string title_of(const nlohmann::json& row);

/// The identity, settings, and everything measured, beside the bound of `card`: bound_card().
nlohmann::json row_of(const BenchCase& bench_case, const BenchOptions& options, const Measurement& measurement,
                      std::string_view card);

/// Whether two rows are of the same layer, batch and backend.
bool differ_in_replay_alone(const nlohmann::json& a, const nlohmann::json& b);

/// Adds to a row what another system's script answered for its case: the latency to "baselines", the rest to
/// "baseline_details", or the reason to "baseline_errors".
void add_answer(const std::string& name, nlohmann::json answer, nlohmann::json& row);

/// The identity, why there is nothing else, and the exit code for it.
nlohmann::json failed_row_of(const BenchCase& bench_case, const std::string& reason, ExitCode code);

/// One line a row; nested values flattened, absent ones empty.
std::string to_csv(const nlohmann::json& rows);

std::string to_table(const nlohmann::json& rows);

}  // namespace flashmoe::cli
