// The flags of `flashmoe trace`: those of `run`, and where the timeline goes.
#pragma once

#include <string>

#include "options.hpp"

namespace flashmoe::cli {

struct TraceOptions {
  Options shared;
  std::string chrome;     ///< file for Perfetto and Chrome; empty: none
  std::string svg;        ///< empty: none
  std::string summary;    ///< results file, schema "trace"; empty: none
  int records = 1 << 16;  ///< room of one actor
};

void add_trace_options(CLI::App& command, TraceOptions& options);

}  // namespace flashmoe::cli
