// The flags of `flashmoe trace`: those of `run` on one process with weights that are made, and where the timeline goes.
#pragma once

#include <optional>
#include <string>

#include "options.hpp"

namespace flashmoe::cli {

struct TraceOptions {
  Options shared;
  std::string chrome;             ///< file for Perfetto and Chrome; empty: none
  std::string svg;                ///< empty: none
  std::string summary;            ///< results file, schema "trace"; empty: none
  std::string commit;             ///< of the program; empty: of the checkout it was built from
  std::optional<int> records;     ///< room of one actor; none: as large as the backend can well afford
  std::optional<int> late_rank;   ///< none: all ranks start alike
  std::optional<double> late_us;  ///< beside late_rank
};

void add_trace_options(CLI::App& command, TraceOptions& options);

}  // namespace flashmoe::cli
