#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <new>
#include <optional>
#include <set>

#include "baseline_scripts.hpp"
#include "bench_cases.hpp"
#include "bench_file.hpp"
#include "bench_measure.hpp"
#include "bench_report.hpp"
#include "card.hpp"
#include "commands.hpp"
#include "commit.hpp"
#include "file_lock.hpp"
#include "flashmoe/error.hpp"
#include "flashmoe/version.hpp"
#include "gpu_monitor.hpp"
#include "interruption.hpp"
#include "io/new_file.hpp"
#include "log.hpp"
#include "machine.hpp"
#include "outputs.hpp"
#include "planner/bound.hpp"
#include "progress.hpp"

namespace flashmoe::cli {

namespace {

nlohmann::json header_of(const BenchOptions& options, const Card& card, BackendKind backend,
                         const Baselines& baselines) {
  return {{"schema", "bench"},
          {"date", fmt::format("{:%Y-%m-%d}", fmt::gmtime(std::time(nullptr)))},
          {"backend", to_string(backend)},
          {"card", card.name},
          {"driver", card.driver},
          {"commit", options.commit.empty() ? commit_of_program() : options.commit},
          {"version", version()},
          {"program", checksum_of_program()},
          {"what",
           "calls back to back, dispatch to combine, router excluded; a call's time is the slowest rank's, latency_us "
           "the median and p95_us the 95th percentile over the repeats; wire_bytes of all ranks together"},
          {"bound_card", bound_card(card.name, DType::bf16).name},
          {"baseline_cards", baselines.cards()}};
}

/// Times the scripts' systems on the cases that have a row of ours and none of theirs, and adds to those rows what they
/// say. Cases that differ in their replay alone are one to them. `monitor` watches, unless null.
void add_scripts(const std::vector<BaselineScript>& scripts, const std::vector<BenchCase>& cases,
                 const BenchOptions& options, const Card& card, GpuMonitor* monitor, BenchFile& file) {
  for (const BaselineScript& script : scripts) {
    std::vector<BenchCase> asked;
    std::vector<std::vector<nlohmann::json>> rows;  // of each case asked for
    for (const BenchCase& one : cases) {
      const nlohmann::json* row = file.find(identity_of(one));
      if (row == nullptr || !row->contains("latency_us") || (*row)["baselines"].contains(script.name())) continue;
      const auto same = std::find_if(rows.begin(), rows.end(), [&](const std::vector<nlohmann::json>& theirs) {
        return differ_in_replay_alone(theirs.front(), *row);
      });
      if (same != rows.end()) {
        same->push_back(*row);
      } else {
        asked.push_back(one);
        rows.push_back({*row});
      }
    }
    if (asked.empty()) continue;
    Stage stage("timing " + script.name(), 1);
    if (monitor != nullptr) monitor->take();
    const std::vector<nlohmann::json> answers = script.time(asked, options);
    const bool answered = std::any_of(answers.begin(), answers.end(),
                                      [](const nlohmann::json& answer) { return answer.contains("latency_us"); });
    if (answered) file.add_baseline(script.name(), card.name, monitor != nullptr ? monitor->take() : nullptr);
    for (std::size_t i = 0; i < answers.size(); ++i) {
      for (nlohmann::json& row : rows[i]) {
        add_answer(script.name(), answers[i], row);
        file.add(row);
      }
    }
    stage.advance();
  }
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

/// Of what the rows ended with the gravest: a fault, no device, bad input, wrong results.
ExitCode verdict(const nlohmann::json& rows) {
  std::set<int> codes;
  for (const nlohmann::json& row : rows) {
    codes.insert(row.contains("error")        ? row.value("exit_code", static_cast<int>(kFault))
                 : row.value("passed", false) ? kRight
                                              : kVerificationFailed);
  }
  for (const ExitCode code : {kFault, kDeviceUnavailable, kBadInput, kVerificationFailed}) {
    if (codes.contains(code)) return code;
  }
  return kRight;
}

/// Whether the file has the case's row already, measured as this run would; says why one of the same case is not. Other
/// systems' files may say something new of it.
bool reuse_row(const BenchCase& one, const BenchOptions& options, const Baselines& baselines, BenchFile& file) {
  const nlohmann::json* found = file.find(identity_of(one));
  if (found == nullptr || found->contains("error")) return false;
  const std::string difference = difference_of(*found, settings_of(one, options), num_compared(one));
  if (!difference.empty()) {
    log_info(fmt::format("{} is measured anew: {}", title_of(*found), difference));
    return false;
  }
  nlohmann::json row = *found;
  row["baselines"].update(baselines.of(row));
  if (row != *found) file.add(row);
  return true;
}

/// For who stops the run now.
std::string what_is_kept(const BenchOptions& options, const BenchFile& file) {
  if (options.output.empty()) return "nothing is kept; with --output FILE every row is, once it is measured";
  return fmt::format("rows measured so far are in {}: {}; the same command with --continue measures the others",
                     options.output, file.num_measured());
}

}  // namespace

ExitCode bench(const BenchOptions& options) {
  const Machine machine = this_machine();
  std::vector<BenchCase> cases = make_cases(options, machine.num_cores);
  const BackendKind backend = cases.front().job.group.backend;
  std::vector<std::string> baseline_files;
  std::vector<BaselineScript> scripts;
  for (const std::string& name : options.baselines) {
    if (is_baseline_script(name)) {
      scripts.emplace_back(name);
    } else if (std::filesystem::exists(name)) {
      baseline_files.push_back(name);
    } else {
      throw InvalidArgument(fmt::format("{} cannot be read: give a JSON file of schema baseline, or one of {}", name,
                                        baseline_script_names()));
    }
  }
  const Baselines baselines(baseline_files);
  const Card card = card_of(backend, machine);
  std::vector<InputFile> inputs;
  for (const BenchCase& one : cases) inputs.insert(inputs.end(), one.job.inputs.begin(), one.job.inputs.end());
  for (const std::string& file : baseline_files) inputs.push_back({"--baselines", file});
  check_outputs({{"--output", options.output, "bench"}, {"--csv", options.csv}}, inputs);
  std::optional<FileLock> lock;
  if (!options.output.empty()) lock.emplace("output", options.output);
  BenchFile file(options.output, header_of(options, card, backend, baselines), recorded_command(options.shared),
                 options.resume);
  Interruption interruption(lock ? lock->path() : std::filesystem::path());
  interruption.say(what_is_kept(options, file));
  std::optional<GpuMonitor> monitor;
  if (backend == BackendKind::cuda) monitor.emplace();
  GpuMonitor* const watch = monitor ? &*monitor : nullptr;
  {
    ExpertShelf shelf;
    Stage stage("measuring", static_cast<std::int64_t>(cases.size()));
    for (BenchCase& one : cases) {
      if (!reuse_row(one, options, baselines, file)) {
        const std::int64_t compared = num_compared(one);
        nlohmann::json row;
        try {
          row = row_of(one, options, measure(one, options, machine, shelf, compared, watch), card.name);
          row["baselines"] = baselines.of(row);
        } catch (const std::bad_alloc&) {
          row = failed_row_of(one, "no memory is left: use fewer tokens or ranks", kBadInput);
        } catch (const InvalidArgument& error) {
          row = failed_row_of(one, error.what(), kBadInput);
        } catch (const CudaError& error) {
          row = failed_row_of(one, error.what(), kDeviceUnavailable);
        } catch (const Error& error) {
          row = failed_row_of(one, error.what(), kFault);
        }
        file.add(row);
      }
      interruption.say(what_is_kept(options, file));
      stage.advance();
    }
  }
  add_scripts(scripts, cases, options, card, watch, file);
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
