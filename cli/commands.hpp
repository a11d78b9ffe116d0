// The program's commands. Each prints its result on standard output and returns an exit code; errors are thrown.
#pragma once

#include <string>

#include "exit_code.hpp"
#include "options.hpp"

namespace flashmoe::cli {

/// One call of the layer, measured, and compared on a sample of tokens.
ExitCode run(const Options& options);

/// One call of the layer, compared on every token.
ExitCode verify(const Options& options);

/// The machine, and the plan and memory of a layer; without a layer, the presets.
ExitCode info(const Options& options);

/// Writes `text` to standard output. Throws Error when it cannot.
void print(const std::string& text);

}  // namespace flashmoe::cli
