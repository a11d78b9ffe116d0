// The program's commands. Each prints its result on standard output and returns an exit code; errors are thrown.
#pragma once

#include <string>
#include <vector>

#include "bench_options.hpp"
#include "exit_code.hpp"
#include "options.hpp"
#include "trace_options.hpp"

namespace flashmoe::cli {

/// One call of the layer, measured, and compared on a sample of tokens.
ExitCode run(const Options& options);

/// One call of the layer, compared on every token.
ExitCode verify(const Options& options);

/// The layer's router over the batch, compared with the fp64 router where it ran on a GPU.
ExitCode route(const Options& options);

/// The machine, and the plan and memory of a layer; without a layer, the presets.
ExitCode info(const Options& options);

/// A sweep: repeated calls, timed, beside the lower bound and other systems.
ExitCode bench(const BenchOptions& options);

/// One call's timeline of every actor, and what it says in numbers.
ExitCode trace(const TraceOptions& options);

/// Figures from results files: the script tools/plot/plot.py takes the process over, with these arguments.
ExitCode plot(const std::vector<std::string>& arguments);

/// Writes `text` to standard output. Throws Error when it cannot.
void print(const std::string& text);

}  // namespace flashmoe::cli
