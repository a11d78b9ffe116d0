#include "trace_options.hpp"

#include <CLI/CLI.hpp>

namespace flashmoe::cli {

void add_trace_options(CLI::App& command, TraceOptions& options) {
  add_options(command, options.shared);
  options.shared.takes_checkpoint = false;  // weights are made
  leave_out(command, {"--checkpoint", "--layer", "--output"});
  leave_out_processes(command);
  const std::string timeline = "Timeline";
  command.add_option("--chrome", options.chrome, "Write the timeline as JSON that Perfetto and chrome://tracing open")
      ->group(timeline);
  command.add_option("--svg", options.svg, "Write the timeline as a picture")->group(timeline);
  command.add_option("--summary", options.summary, "Write the summary to a results file, schema \"trace\"")
      ->group(timeline);
  command
      .add_option("--commit", options.commit,
                  "Commit of the program [that of the checkout it was built from, -dirty: edited; else unknown]")
      ->group(timeline);
  command
      .add_option("--records", options.records,
                  "Room for the spans of one actor (default 65536; backend cuda, which has thousands: 4096)")
      ->group(timeline);
  CLI::Option* late_rank =
      command
          .add_option("--late-rank", options.late_rank,
                      "Hold this rank's call back by --late-us, and say what the others did until its tokens came")
          ->group(timeline);
  CLI::Option* late_us =
      command.add_option("--late-us", options.late_us, "How late --late-rank begins")->group(timeline);
  late_rank->needs(late_us);
  late_us->needs(late_rank);
}

}  // namespace flashmoe::cli
