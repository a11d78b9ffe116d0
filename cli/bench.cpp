#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <ctime>
#include <filesystem>
#include <new>
#include <optional>
#include <system_error>

#include "bench_cases.hpp"
#include "bench_file.hpp"
#include "bench_measure.hpp"
#include "bench_report.hpp"
#include "commands.hpp"
#include "flashmoe/error.hpp"
#include "flashmoe/version.hpp"
#include "gpu_monitor.hpp"
#include "io/new_file.hpp"
#include "machine.hpp"
#include "progress.hpp"

namespace flashmoe::cli {

namespace {

/// The commit that git sees where the program lies, which for a build folder is the checkout's.
std::string commit_of_program() {
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::string line =
      error ? std::string()
            : first_line_of(fmt::format("git -C '{}' rev-parse HEAD 2>/dev/null", program.parent_path().string()));
  return line.empty() ? "unknown" : line;
}

nlohmann::json header_of(const BenchOptions& options, const Machine& machine, BackendKind backend,
                         const Baselines& baselines) {
  const std::optional<GpuIdentity> gpu = backend == BackendKind::cuda ? identify_gpu() : std::nullopt;
  const nlohmann::json unknown = backend == BackendKind::cuda ? nlohmann::json("unknown") : nlohmann::json(nullptr);
  return {{"schema", "bench"},
          {"date", fmt::format("{:%Y-%m-%d}", fmt::gmtime(std::time(nullptr)))},
          {"backend", to_string(backend)},
          {"card", backend == BackendKind::cpu ? machine.processor
                   : gpu                       ? gpu->card
                                               : "unknown"},
          {"driver", gpu ? nlohmann::json(gpu->driver) : unknown},
          {"commit", options.commit.empty() ? commit_of_program() : options.commit},
          {"version", version()},
          {"command", fmt::format("flashmoe {}", fmt::join(options.shared.command_line.begin() + 1,
                                                           options.shared.command_line.end(), " "))},
          {"what",
           "calls back to back, dispatch to combine, router excluded; a call's time is the slowest rank's, latency_us "
           "the median and p95_us the 95th percentile over the repeats; wire_bytes of all ranks together"},
          {"bound_card", "H100 SXM, one a rank"},
          {"baseline_cards", baselines.cards()}};
}

/// The rows of all cases, in their order.
nlohmann::json rows_of(const std::vector<BenchCase>& cases, const BenchFile& file) {
  nlohmann::json rows = nlohmann::json::array();
  for (const BenchCase& one : cases) {
    const nlohmann::json identity = identity_of(one);
    for (const nlohmann::json& row : file.rows()) {
      if (identity_of_row(row) == identity) rows.push_back(row);
    }
  }
  return rows;
}

ExitCode verdict(const nlohmann::json& rows) {
  ExitCode code = kRight;
  for (const nlohmann::json& row : rows) {
    if (row.contains("error")) return kFault;
    if (!row.value("passed", false)) code = kVerificationFailed;
  }
  return code;
}

}  // namespace

ExitCode bench(const BenchOptions& options) {
  const Machine machine = this_machine();
  std::vector<BenchCase> cases = make_cases(options, machine.num_cores);
  const BackendKind backend = cases.front().job.group.backend;
  const Baselines baselines(options.baselines);
  BenchFile file(options.output, header_of(options, machine, backend, baselines), options.resume);
  ExpertShelf shelf;
  std::optional<GpuMonitor> monitor;
  if (backend == BackendKind::cuda) monitor.emplace();
  {
    Stage stage("measuring", static_cast<std::int64_t>(cases.size()));
    for (BenchCase& one : cases) {
      if (!file.has(identity_of(one))) {
        if (monitor) monitor->take();
        nlohmann::json row;
        try {
          row = row_of(one, options, measure(one, options, machine, shelf));
          row["baselines"] = baselines.of(row);
          if (monitor) row["conditions"] = monitor->take();
        } catch (const std::bad_alloc&) {
          row = failed_row_of(one, "no memory is left: use fewer tokens or ranks");
        } catch (const Error& error) {
          row = failed_row_of(one, error.what());
        }
        file.add(row);
      }
      stage.advance();
    }
  }
  nlohmann::json result = file.content();
  result["rows"] = rows_of(cases, file);
  const nlohmann::json& rows = result["rows"];
  if (!options.csv.empty()) write_new_file(options.csv, [&](std::ostream& stream) { stream << to_csv(rows); });
  print(options.shared.json ? result.dump() + '\n'
                            : fmt::format("{}, backend {}; bound of {}\n\n{}", result["card"].get<std::string>(),
                                          to_string(backend), result["bound_card"].get<std::string>(), to_table(rows)));
  return verdict(rows);
}

}  // namespace flashmoe::cli
