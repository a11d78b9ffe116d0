// The program `flashmoe`: one MoE layer on several ranks, planned, run and compared.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <new>
#include <span>
#include <string>
#include <system_error>

#include "commands.hpp"
#include "core/printable.hpp"
#include "flashmoe/error.hpp"
#include "flashmoe/version.hpp"
#include "log.hpp"
#include "parse_error.hpp"

namespace flashmoe::cli {

void print(const std::string& text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
    throw Error("standard output cannot be written: check that the disk is not full");
  }
}

namespace {

/// Runs a command and turns what it throws into one line on standard error and an exit code.
ExitCode guarded(const std::function<ExitCode()>& command) {
  try {
    return command();
  } catch (const InvalidArgument& error) {
    log_error(error.what());
    return kBadInput;
  } catch (const CudaError& error) {
    log_error(error.what());
    return kDeviceUnavailable;
  } catch (const std::bad_alloc&) {
    log_error("no memory is left: use fewer tokens, ranks or threads");
    return kBadInput;
  } catch (const std::system_error& error) {
    const bool no_thread = error.code() == std::errc::resource_unavailable_try_again;
    log_error(no_thread ? "no further thread can be started: use fewer --threads or ranks, or raise `ulimit -v` or `ulimit -u`"
                        : error.what());
    return no_thread ? kBadInput : kFault;
  } catch (const std::exception& error) {
    log_error(error.what());
    return kFault;
  }
}

/// Refuses empty values, which a shell makes of a variable that is not set: as a file they would mean none.
void refuse_empty_values(CLI::App& command) {
  for (CLI::Option* option : command.get_options()) {
    if (option->get_items_expected_max() == 0) continue;
    option->check(CLI::Validator(
        [](std::string& value) { return value.empty() ? std::string("is empty: give a value, or leave it out") : ""; },
        ""));
  }
}

/// Refuses values of the option that the parser would make no T of, which is no smaller than the option's own type.
template <class T>
void refuse_what_is_no(const char* kind, CLI::Option& option) {
  const CLI::TypeValidator<T> is_one("");
  option.check(CLI::Validator(
      [is_one, kind](std::string& value) {
        return is_one(value).empty() ? std::string() : fmt::format("({}) must be {}", printable(value), kind);
      },
      ""));
}

/// Refuses what is no number where one is wanted: the parser would only say that it cannot convert.
void refuse_what_is_no_number(CLI::App& command) {
  for (CLI::Option* option : command.get_options()) {
    if (option->get_type_name() == "INT") refuse_what_is_no<std::int64_t>("a whole number", *option);
    if (option->get_type_name() == "FLOAT") refuse_what_is_no<double>("a number", *option);
  }
}

/// Refuses an empty item of a list, as in 16,,32, which the parser has left out without a word. `words`: behind the
/// command's name.
void refuse_empty_items(const CLI::App& command, std::span<char* const> words) {
  const CLI::Option* option = nullptr;  // that the words belong to
  for (std::string value : words) {
    if (value.starts_with("--")) {
      const std::size_t end = std::min(value.find('='), value.size());
      option = command.get_option_no_throw(value.substr(0, end));
      if (end == value.size()) continue;
      value.erase(0, end + 1);
    }
    if (option == nullptr || option->get_delimiter() == '\0' || value.empty()) continue;
    const std::string comma(1, option->get_delimiter());
    if ((comma + value + comma).find(comma + comma) != std::string::npos) {
      throw CLI::ValidationError(
          option->get_name(),
          fmt::format("{} has an empty item: give a value there, or leave out a comma", printable(value)));
    }
  }
}

ExitCode parse_and_run(int argc, char** argv) {
  CLI::App app("A distributed Mixture-of-Experts layer: planned, run and compared with an fp64 reference.", "flashmoe");
  app.set_version_flag("--version", std::string(version()));
  app.require_subcommand(1);
  app.footer(
      "Exit codes: 0 right, 1 wrong, or verify measured nothing, 2 bad input, 3 timeout or fault during the run, "
      "4 device unavailable, 130 interrupted (Ctrl-C).");
  Options options;
  options.command_line.assign(argv, argv + argc);
  std::function<ExitCode()> command;
  const auto add_command = [&](const char* name, const char* description, ExitCode (*function)(const Options&)) {
    CLI::App* subcommand = app.add_subcommand(name, description);
    add_options(*subcommand, options);
    subcommand->callback(
        [&command, &options, function] { command = [&options, function] { return function(options); }; });
    return subcommand;
  };
  CLI::App* info_command =
      add_command("info", "The machine, and the plan and memory of a layer; without a layer, the presets", &info);
  leave_out(*info_command, {"--routing", "--seed", "--deadline", "--verify-tokens", "--output"});
  leave_out_processes(*info_command);
  add_command("run", "One call of a layer, measured, and compared with the reference on a sample of tokens", &run);
  add_command("verify", "One call of a layer, compared with the reference on every token", &verify);
  CLI::App* route_command =
      add_command("route", "The router of a layer over a batch: loads of experts, and the routes as files", &route);
  leave_out(*route_command, {"--routing", "--engine", "--wire-form", "--result-form", "--wave-tokens", "--wave-ring",
                             "--batch-invariant", "--threads", "--deadline", "--verify-tokens"});
  leave_out_processes(*route_command);
  route_command->get_option("--output")->description("Write the routes of all ranks to IDS.npy or IDS.npy,WEIGHTS.npy");
  BenchOptions bench_options;
  bench_options.shared.command_line = options.command_line;
  CLI::App* bench_command =
      app.add_subcommand("bench", "A sweep of layers and batches: repeated calls, timed, beside the bound");
  add_bench_options(*bench_command, bench_options);
  bench_command->callback([&] { command = [&bench_options] { return bench(bench_options); }; });
  TraceOptions trace_options;
  trace_options.shared.command_line = options.command_line;
  CLI::App* trace_command =
      app.add_subcommand("trace", "The timeline of every actor in one call, as JSON, picture and summary");
  add_trace_options(*trace_command, trace_options);
  trace_command->callback([&] { command = [&trace_options] { return trace(trace_options); }; });
  CLI::App* plot_command = app.add_subcommand("plot", "Figures from results files (flashmoe plot --help says how)");
  plot_command->prefix_command();
  plot_command->set_help_flag();
  plot_command->callback(
      [&command, plot_command] { command = [plot_command] { return plot(plot_command->remaining()); }; });
  for (CLI::App* subcommand : app.get_subcommands({})) {
    refuse_what_is_no_number(*subcommand);
    refuse_empty_values(*subcommand);
  }
  try {
    app.parse(argc, argv);
    refuse_empty_items(*app.get_subcommands().front(), {argv + 2, argv + argc});
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {
      app.exit(error);  // --help, --version
      return kRight;
    }
    log_error(sentence_of(error, app, {argv + 1, argv + argc}));
    return kBadInput;
  }
  return guarded(command);
}

}  // namespace
}  // namespace flashmoe::cli

int main(int argc, char** argv) {
  flashmoe::cli::start_log();
  return flashmoe::cli::parse_and_run(argc, argv);
}
