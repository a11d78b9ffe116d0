#include "run_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "flashmoe/version.hpp"
#include "machine.hpp"
#include "table.hpp"

namespace flashmoe::cli {

namespace {

struct Phase {
  const char* name;
  double PhaseTimes::*us;
};
constexpr Phase kPhases[] = {{"dispatch", &PhaseTimes::dispatch_us}, {"subscribe", &PhaseTimes::subscribe_us},
                             {"schedule", &PhaseTimes::schedule_us}, {"process", &PhaseTimes::process_us},
                             {"combine", &PhaseTimes::combine_us},   {"idle", &PhaseTimes::idle_us},
                             {"wall", &PhaseTimes::wall_us}};

std::uint64_t row_bytes(const Problem& problem) {
  return static_cast<std::uint64_t>(problem.hidden) * dtype_bytes(problem.dtype);
}

/// Bytes a rank would send with one row for every route: its tokens out, the results of its experts back.
std::uint64_t per_route_bytes(const Problem& problem, const RankLoad& load) {
  return static_cast<std::uint64_t>(load.remote_routes_out + load.remote_routes_in) * row_bytes(problem);
}

nlohmann::json phases_json(const PhaseTimes& phases) {
  nlohmann::json json;
  for (const Phase& phase : kPhases) json[phase.name] = phases.*phase.us;
  return json;
}

/// Time of all ranks; the wall time is the slowest rank's.
PhaseTimes total_phases(const std::vector<CallStats>& stats) {
  PhaseTimes total;
  for (const CallStats& rank : stats) {
    const double wall_us = std::max(total.wall_us, rank.phases.wall_us);
    for (const Phase& phase : kPhases) total.*phase.us += rank.phases.*phase.us;
    total.wall_us = wall_us;
  }
  return total;
}

/// A number JSON can hold: null for none and for infinity.
nlohmann::json number(double value) { return std::isfinite(value) ? nlohmann::json(value) : nlohmann::json(nullptr); }

/// Null where nothing was compared although there were tokens.
nlohmann::json measured(const Deviation& deviation, std::int64_t num_tokens, double value) {
  return deviation.num_tokens == 0 && num_tokens > 0 ? nlohmann::json(nullptr) : number(value);
}

nlohmann::json rank_json(const RunReport& report, int rank) {
  const auto index = static_cast<std::size_t>(rank);
  const CallStats& stats = report.stats[index];
  const RankLoad& load = report.loads[index];
  const Deviation& deviation = report.comparison.ranks[index];
  const std::int64_t tokens = report.job.tokens_per_rank[index];
  return {{"rank", rank},
          {"tokens", tokens},
          {"routes_out", load.routes_out},
          {"routes_in", load.routes_in},
          {"wire_bytes", stats.wire_bytes},
          {"wire_overhead_bytes", stats.wire_overhead_bytes},
          {"wire_bytes_per_route_sending", per_route_bytes(report.job.problem, load)},
          {"heap_bytes", report.info.heap_bytes},
          {"local_bytes", report.info.local_bytes},
          {"phases_us", phases_json(stats.phases)},
          {"verified_tokens", deviation.num_tokens},
          {"rel_l2", measured(deviation, tokens, deviation.rel_l2)},
          {"max_abs_error", measured(deviation, tokens, deviation.max_abs_error)}};
}

template <class Field>
std::uint64_t sum(const std::vector<CallStats>& stats, Field field) {
  std::uint64_t total = 0;
  for (const CallStats& rank : stats) total += rank.*field;
  return total;
}

std::string error_text(const Deviation& deviation, std::int64_t num_tokens) {
  if (deviation.num_not_finite > 0) return "NaN/Inf";
  if (deviation.num_tokens == 0 && num_tokens > 0) return "-";
  return fmt::format("{:.2e}", deviation.rel_l2);
}

std::string rank_table(const RunReport& report) {
  const Problem& problem = report.job.problem;
  Table table({"rank", "tokens", "routes out", "routes in", "sent", "per-route", "overhead", "heap",
               "process ms", "wall ms", "rel. L2"});
  RankLoad loads;
  for (std::size_t rank = 0; rank < report.stats.size(); ++rank) {
    const CallStats& stats = report.stats[rank];
    const RankLoad& load = report.loads[rank];
    const std::int64_t tokens = report.job.tokens_per_rank[rank];
    table.add({fmt::format("{}", rank), fmt::format("{}", tokens), fmt::format("{}", load.routes_out),
               fmt::format("{}", load.routes_in), readable_bytes(stats.wire_bytes), readable_bytes(per_route_bytes(problem, load)),
               readable_bytes(stats.wire_overhead_bytes), readable_bytes(report.info.heap_bytes),
               fmt::format("{:.1f}", stats.phases.process_us / 1e3), fmt::format("{:.1f}", stats.phases.wall_us / 1e3),
               error_text(report.comparison.ranks[rank], tokens)});
    loads.routes_out += load.routes_out;
    loads.routes_in += load.routes_in;
    loads.remote_routes_out += load.remote_routes_out;
    loads.remote_routes_in += load.remote_routes_in;
  }
  const PhaseTimes total = total_phases(report.stats);
  table.add({"all", fmt::format("{}", report.job.num_tokens()), fmt::format("{}", loads.routes_out),
             fmt::format("{}", loads.routes_in), readable_bytes(sum(report.stats, &CallStats::wire_bytes)),
             readable_bytes(per_route_bytes(problem, loads)), readable_bytes(sum(report.stats, &CallStats::wire_overhead_bytes)),
             readable_bytes(report.info.heap_bytes * report.stats.size()), fmt::format("{:.1f}", total.process_us / 1e3),
             fmt::format("{:.1f}", total.wall_us / 1e3), error_text(report.comparison.all, report.job.num_tokens())});
  return table.text();
}

std::string phase_line(const RunReport& report) {
  const PhaseTimes total = total_phases(report.stats);
  std::string line = "time per phase, all ranks together, ms:";
  for (const Phase& phase : kPhases) {
    if (phase.us != &PhaseTimes::wall_us) line += fmt::format(" {} {:.1f}", phase.name, total.*phase.us / 1e3);
  }
  return line + '\n';
}

std::string verdict(const RunReport& report) {
  const Comparison& comparison = report.comparison;
  const std::int64_t num_tokens = report.job.num_tokens();
  if (num_tokens == 0) return "no tokens: nothing to compare\n";
  const std::int64_t unmeasured = comparison.all.num_unmeasured;
  if (comparison.all.num_tokens == 0 && comparison.all.num_not_finite == 0) {
    return unmeasured == 0 ? "not compared with the reference\n"
                           : "not measured: every result compared is NaN or Inf in the reference too\n";
  }
  const std::string scope = fmt::format("{} of {} tokens against the fp64 reference", comparison.all.num_tokens, num_tokens);
  if (comparison.all.num_not_finite > 0) {
    return fmt::format("WRONG: {} results of {} are NaN or Inf where the reference is not, or the other way round\n",
                       comparison.all.num_not_finite, scope);
  }
  std::string text = fmt::format("{}: relative L2 {:.2e} over {}, tolerance {:.1e}; largest error {:.2e}",
                                 comparison.passed ? "right" : "WRONG", comparison.all.rel_l2, scope,
                                 comparison.tolerance, comparison.all.max_abs_error);
  if (unmeasured > 0) text += fmt::format("; {} results are NaN or Inf in the reference too", unmeasured);
  return text + '\n';
}

}  // namespace

std::vector<RankLoad> count_routes(const Batch& batch) {
  const Problem& problem = batch.problem;
  std::vector<RankLoad> loads(static_cast<std::size_t>(problem.num_ranks));
  for (int source = 0; source < problem.num_ranks; ++source) {
    RankLoad& out = loads[static_cast<std::size_t>(source)];
    for (std::int64_t token = batch.first_token[source]; token < batch.first_token[source + 1]; ++token) {
      for (int choice = 0; choice < problem.top_k; ++choice) {
        const std::int32_t expert = batch.expert(token, choice);
        if (expert < 0) continue;
        const int owner = expert / problem.num_local_experts();
        RankLoad& in = loads[static_cast<std::size_t>(owner)];
        ++out.routes_out;
        ++in.routes_in;
        if (owner == source) continue;
        ++out.remote_routes_out;
        ++in.remote_routes_in;
      }
    }
  }
  return loads;
}

nlohmann::json to_json(const Problem& problem) {
  return {{"num_ranks", problem.num_ranks},
          {"hidden", problem.hidden},
          {"intermediate", problem.intermediate},
          {"num_experts", problem.num_experts},
          {"top_k", problem.top_k},
          {"max_tokens", problem.max_tokens},
          {"dtype", to_string(problem.dtype)},
          {"activation", to_string(problem.activation)},
          {"gated", problem.gated},
          {"up_bias", problem.up_bias},
          {"down_bias", problem.down_bias},
          {"weight_on_input", problem.weight_on_input},
          {"swiglu_alpha", problem.swiglu_alpha},
          {"swiglu_limit", problem.swiglu_limit},
          {"wire_form", to_string(problem.wire_form)},
          {"result_form", to_string(problem.result_form)},
          {"wave_tokens", problem.wave_tokens},
          {"wave_ring", problem.wave_ring},
          {"batch_invariant", problem.batch_invariant}};
}

nlohmann::json to_json(const RunReport& report) {
  const Job& job = report.job;
  const Comparison& comparison = report.comparison;
  std::uint64_t per_route = 0;
  nlohmann::json ranks = nlohmann::json::array();
  for (int rank = 0; rank < job.problem.num_ranks; ++rank) {
    per_route += per_route_bytes(job.problem, report.loads[static_cast<std::size_t>(rank)]);
    ranks.push_back(rank_json(report, rank));
  }
  const std::int64_t num_tokens = job.num_tokens();
  const bool nothing_measured = num_tokens > 0 && comparison.all.num_tokens == 0 && comparison.passed;
  return {{"command", report.command},
          {"version", version()},
          {"layer", job.layer_name},
          {"problem", to_json(job.problem)},
          {"routing", job.routing_name},
          {"seed", job.seed},
          {"backend", to_string(job.group.backend)},
          {"engine", report.info.engine},
          {"plan", report.info.plan},
          {"wire_form", to_string(report.stats.front().wire_form)},
          {"result_form", to_string(report.stats.front().result_form)},
          {"num_ranks", job.problem.num_ranks},
          {"num_processes", job.process ? job.problem.num_ranks : 1},
          {"tokens_per_rank", job.tokens_per_rank},
          {"dtype", to_string(job.problem.dtype)},
          {"kernel_launches", sum(report.stats, &CallStats::kernel_launches)},
          {"weights_in_memory", report.weights_in_memory},
          {"verified_tokens", comparison.all.num_tokens},
          {"tolerance", comparison.tolerance},
          {"rel_l2", measured(comparison.all, num_tokens, comparison.all.rel_l2)},
          {"max_abs_error", measured(comparison.all, num_tokens, comparison.all.max_abs_error)},
          {"num_not_finite", comparison.all.num_not_finite},
          {"num_unmeasured", comparison.all.num_unmeasured},
          {"passed", nothing_measured ? nlohmann::json(nullptr) : nlohmann::json(comparison.passed)},
          {"heap_bytes", report.info.heap_bytes},
          {"local_bytes", report.info.local_bytes},
          {"wire_bytes", sum(report.stats, &CallStats::wire_bytes)},
          {"wire_overhead_bytes", sum(report.stats, &CallStats::wire_overhead_bytes)},
          {"wire_bytes_per_route_sending", per_route},
          {"phases_us", phases_json(total_phases(report.stats))},
          {"ranks", ranks}};
}

std::string to_text(const RunReport& report) {
  const Problem& problem = report.job.problem;
  std::string text = fmt::format("{}: hidden {}, intermediate {}, {} experts, top {}, {}; {} ranks, {} tokens, routing {}\n",
                                 report.job.layer_name, problem.hidden, problem.intermediate, problem.num_experts,
                                 problem.top_k, to_string(problem.dtype), problem.num_ranks, report.job.num_tokens(),
                                 report.job.routing_name);
  text += fmt::format("backend {}{}, engine {}: {}\n\n", to_string(report.job.group.backend),
                      report.job.process ? ", one process a rank" : "", report.info.engine, report.info.plan);
  text += rank_table(report) + '\n';
  text += phase_line(report);
  if (!report.weights_in_memory) text += "the weights do not fit in memory: making them is part of these times\n";
  return text + verdict(report);
}

}  // namespace flashmoe::cli
