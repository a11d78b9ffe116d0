#include "bench_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>
#include <vector>

#include "checksum.hpp"
#include "planner/rank_memory.hpp"
#include "run_report.hpp"
#include "table.hpp"

namespace flashmoe::cli {

namespace {

constexpr const char* kIdentityKeys[] = {"model", "problem", "tokens_per_rank", "routing", "seed", "backend", "replay"};

/// One number when all ranks have as many, else one a rank.
nlohmann::json tokens_json(const Job& job) {
  const auto& counts = job.tokens_per_rank;
  const bool even =
      std::all_of(counts.begin(), counts.end(), [&](std::int64_t count) { return count == counts.front(); });
  return even ? nlohmann::json(counts.front()) : nlohmann::json(counts);
}

std::string cell(const nlohmann::json& row, const char* key, const char* format, double scale = 1.0) {
  const auto found = row.find(key);
  if (found == row.end() || !found->is_number()) return "-";
  return fmt::format(fmt::runtime(format), found->get<double>() * scale);
}

std::string text_of(const nlohmann::json& value) { return value.is_string() ? value.get<std::string>() : value.dump(); }

std::string quoted(const std::string& text) {
  if (text.find_first_of(",\"\n") == std::string::npos) return text;
  std::string result = "\"";
  for (const char c : text) result += c == '"' ? "\"\"" : std::string(1, c);
  return result + '"';
}

/// "problem": {"hidden": 8} as "problem.hidden": 8; lists stay.
nlohmann::json flattened(const nlohmann::json& row) {
  nlohmann::json flat = nlohmann::json::object();
  for (const auto& [key, value] : row.items()) {
    if (!value.is_object()) {
      flat[key] = value;
      continue;
    }
    const nlohmann::json nested = flattened(value);
    for (const auto& [inner, inner_value] : nested.items()) flat[key + "." + inner] = inner_value;
  }
  return flat;
}

}  // namespace

nlohmann::json to_json(const RankBound& bound) {
  return {{"compute_us", bound.compute_us},
          {"weights_us", bound.weights_us},
          {"hbm_us", bound.hbm_us},
          {"wire_us", bound.wire_us},
          {"wire_per_route_us", bound.wire_per_route_us}};
}

nlohmann::json identity_of(const BenchCase& bench_case) {
  const Job& job = bench_case.job;
  return {{"model", job.layer_name},
          {"problem", to_json(job.problem)},
          {"tokens_per_rank", tokens_json(job)},
          {"routing", job.routing_name},
          {"seed", job.seed},
          {"backend", to_string(job.group.backend)},
          {"replay", to_string(bench_case.replay)}};
}

nlohmann::json identity_of_row(const nlohmann::json& row) {
  nlohmann::json identity;
  for (const char* key : kIdentityKeys) {
    if (!row.is_object() || !row.contains(key)) return nullptr;
    identity[key] = row[key];
  }
  return identity;
}

nlohmann::json settings_of(const BenchCase& bench_case, const BenchOptions& options) {
  const Job& job = bench_case.job;
  nlohmann::json settings{{"warm_up", options.warm_up},
                          {"repeats", options.repeats},
                          {"budget_ms", options.budget_ms},
                          {"rest_ms", options.rest_ms},
                          {"engine", to_string(job.group.engine)}};
  if (job.group.backend == BackendKind::cpu) settings["threads"] = job.group.num_threads;
  if (job.routing) {
    for (const auto& [key, file] : {std::pair{"histogram_checksum", job.routing->histogram_file},
                                    {"ids_checksum", job.routing->ids_file},
                                    {"weights_checksum", job.routing->weights_file}}) {
      if (!file.empty()) settings[key] = checksum_of_file(file);
    }
  }
  return settings;
}

std::int64_t num_compared(const BenchCase& bench_case) {
  return std::min(bench_case.job.verify_tokens.value_or(kSampledTokens), bench_case.job.num_tokens());
}

std::string difference_of(const nlohmann::json& row, const nlohmann::json& settings, std::int64_t num_compared) {
  const nlohmann::json before = row.value("settings", nlohmann::json());
  if (!before.is_object()) return "its settings are not recorded";
  for (const auto& [key, value] : settings.items()) {
    const auto found = before.find(key);
    if (found == before.end()) return fmt::format("{} is not recorded", key);
    if (*found != value) return fmt::format("{} was {} and is {}", key, text_of(*found), text_of(value));
  }
  const nlohmann::json compared = row.value("verify_tokens", nlohmann::json());
  if (!compared.is_number_integer() || compared < num_compared)
    return fmt::format("verify_tokens was {} and is {}", text_of(compared), num_compared);
  return {};
}

std::string title_of(const nlohmann::json& row) {
  return fmt::format("{}, {} tokens a rank", text_of(row["model"]), text_of(row["tokens_per_rank"]));
}

nlohmann::json row_of(const BenchCase& bench_case, const BenchOptions& options, const Measurement& measurement,
                      std::string_view card) {
  const Job& job = bench_case.job;
  const Problem& problem = job.problem;
  const LayerBound layer = layer_bound(problem, measurement.work, bound_card(card, problem.dtype).rates);
  const RankBound& bound = layer.rank;
  const double us = quantile(measurement.call_us, 0.5);
  const double num_units = measurement.num_gpus > 0 ? measurement.num_gpus : problem.num_ranks;
  std::uint64_t wire = 0;
  std::uint64_t overhead = 0;
  std::uint64_t most_sent = 0;
  for (const CallStats& rank : measurement.stats) {
    wire += rank.wire_bytes;
    overhead += rank.wire_overhead_bytes;
    most_sent = std::max(most_sent, rank.wire_bytes + rank.wire_overhead_bytes);
  }
  const Comparison& comparison = measurement.comparison;
  const bool compared = comparison.all.num_tokens > 0 && std::isfinite(comparison.all.rel_l2);
  nlohmann::json row = identity_of(bench_case);
  row.update(
      {{"num_ranks", problem.num_ranks},
       {"gpus", measurement.num_gpus},
       {"dtype", to_string(problem.dtype)},
       {"engine", measurement.info.engine},
       {"wire_form", to_string(measurement.stats.front().wire_form)},
       {"result_form", to_string(measurement.stats.front().result_form)},
       {"settings", settings_of(bench_case, options)},
       {"deadline_seconds", job.group.deadline_seconds},
       {"verify_tokens", num_compared(bench_case)},
       {"repeats", measurement.call_us.size()},
       {"latency_us", us},
       {"p95_us", quantile(measurement.call_us, 0.95)},
       {"fastest_us", quantile(measurement.call_us, 0.0)},
       {"tflops_per_gpu", layer.flops / num_units / us * 1e-6},
       {"hbm_bytes", layer.memory_bytes},
       {"hbm_gb_per_s", layer.memory_bytes / us * 1e-3},
       {"wire_bytes", wire},
       {"wire_overhead_bytes", overhead},
       {"wire_gb_per_s", static_cast<double>(most_sent) / us * 1e-3},
       {"bound_us", bound.us()},
       {"bound_limiter", bound.limiter()},
       {"bound", to_json(bound)},
       {"fraction_of_bound", bound.us() / us},
       {"baselines", nlohmann::json::object()},
       {"heap_bytes", measurement.info.heap_bytes},
       {"local_bytes", measurement.info.local_bytes},
       {"rank_memory_bytes", rank_memory_bytes(problem, measurement.info.heap_bytes, measurement.info.local_bytes)},
       {"weights_in_memory", measurement.weights_in_memory},
       {"verified_tokens", comparison.all.num_tokens},
       {"rel_l2", compared ? nlohmann::json(comparison.all.rel_l2) : nlohmann::json(nullptr)},
       {"tolerance", comparison.tolerance},
       {"passed", comparison.passed}});
  if (!measurement.conditions.is_null()) row["conditions"] = measurement.conditions;
  return row;
}

bool differ_in_replay_alone(const nlohmann::json& a, const nlohmann::json& b) {
  nlohmann::json first = identity_of_row(a);
  nlohmann::json second = identity_of_row(b);
  first.erase("replay");
  second.erase("replay");
  return first == second;
}

void add_answer(const std::string& name, nlohmann::json answer, nlohmann::json& row) {
  if (answer.contains("latency_us")) {
    row["baselines"][name] = answer["latency_us"];
    answer.erase("latency_us");
    row["baseline_details"][name] = std::move(answer);
    if (row.contains("baseline_errors")) row["baseline_errors"].erase(name);
  } else {
    row["baseline_errors"][name] = answer.value("error", "no answer");
  }
}

nlohmann::json failed_row_of(const BenchCase& bench_case, const std::string& reason, ExitCode code) {
  nlohmann::json row = identity_of(bench_case);
  row.update({{"num_ranks", bench_case.job.problem.num_ranks},
              {"dtype", to_string(bench_case.job.problem.dtype)},
              {"error", reason},
              {"exit_code", static_cast<int>(code)}});
  return row;
}

std::string to_csv(const nlohmann::json& rows) {
  std::vector<nlohmann::json> flat;
  std::set<std::string> keys;
  for (const nlohmann::json& row : rows) {
    flat.push_back(flattened(row));
    for (const auto& item : flat.back().items()) keys.insert(item.key());
  }
  std::string text;
  for (const std::string& key : keys) text += (text.empty() ? "" : ",") + quoted(key);
  text += '\n';
  for (const nlohmann::json& row : flat) {
    std::string line;
    for (const std::string& key : keys) {
      if (!line.empty() || key != *keys.begin()) line += ',';
      if (row.contains(key) && !row[key].is_null()) line += quoted(text_of(row[key]));
    }
    text += line + '\n';
  }
  return text;
}

std::string to_table(const nlohmann::json& rows) {
  std::vector<std::string> headings{"layer",   "experts",  "ranks",     "tokens",   "dtype",    "routing",
                                    "replay",  "us",       "p95 us",    "bound us", "of bound", "limiter",
                                    "TFLOP/s", "HBM GB/s", "wire GB/s", "rel. L2"};
  std::set<std::string> baselines;
  for (const nlohmann::json& row : rows) {
    if (!row.contains("baselines")) continue;
    for (const auto& item : row["baselines"].items()) baselines.insert(item.key());
  }
  headings.insert(headings.end(), baselines.begin(), baselines.end());
  Table table(headings);
  std::string failures;
  std::set<std::string> reasons;
  for (const nlohmann::json& row : rows) {
    const nlohmann::json errors = row.value("baseline_errors", nlohmann::json::object());
    for (const auto& item : errors.items()) {
      reasons.insert(fmt::format("not measured: {}\n", text_of(item.value())));
    }
    std::vector<std::string> cells{text_of(row["model"]),
                                   text_of(row["problem"]["num_experts"]),
                                   text_of(row["num_ranks"]),
                                   text_of(row["tokens_per_rank"]),
                                   text_of(row["dtype"]),
                                   text_of(row["routing"]),
                                   text_of(row["replay"]),
                                   cell(row, "latency_us", "{:.1f}"),
                                   cell(row, "p95_us", "{:.1f}"),
                                   cell(row, "bound_us", "{:.4g}"),
                                   cell(row, "fraction_of_bound", "{:.3g} %", 100.0),
                                   row.value("bound_limiter", "-"),
                                   cell(row, "tflops_per_gpu", "{:.3g}"),
                                   cell(row, "hbm_gb_per_s", "{:.3g}"),
                                   cell(row, "wire_gb_per_s", "{:.3g}"),
                                   cell(row, "rel_l2", "{:.2e}")};
    const double ours = row.value("latency_us", 0.0);
    for (const std::string& name : baselines) {
      const nlohmann::json theirs = row.value("baselines", nlohmann::json::object());
      cells.push_back(theirs.contains(name) && ours > 0
                          ? fmt::format("{} ({:.2f} x ours)", cell(theirs, name.c_str(), "{:.1f}"),
                                        theirs[name].get<double>() / ours)
                          : "-");
    }
    table.add(std::move(cells));
    if (row.contains("error")) failures += fmt::format("not measured: {}: {}\n", title_of(row), text_of(row["error"]));
  }
  for (const std::string& reason : reasons) failures += reason;
  return table.text() + failures;
}

}  // namespace flashmoe::cli
