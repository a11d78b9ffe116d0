#include "bench_options.hpp"

#include <CLI/CLI.hpp>

namespace flashmoe::cli {

void add_bench_options(CLI::App& command, BenchOptions& options) {
  options.shared.takes_config = options.shared.takes_checkpoint = false;
  const std::string layer = "Layer";
  command.add_option("sizes", options.sizes, "Short form: tokens of every rank, hidden, intermediate, experts, top k")
      ->expected(5)
      ->group(layer);
  command.add_option("--preset", options.presets, "Models' layers at their real size")->delimiter(',')->group(layer);
  command.add_option("--hidden", options.shared.hidden, "Elements of a token row")->group(layer);
  command.add_option("--intermediate", options.shared.intermediate, "Inner width of an expert")->group(layer);
  command.add_option("--experts", options.experts, "Experts of all ranks together")->delimiter(',')->group(layer);
  command.add_option("--top-k", options.shared.top_k, "Experts a token takes")->group(layer);
  command
      .add_option("--activation", options.shared.activation,
                  "silu, gelu, gelu_tanh, relu, relu2, identity or swiglu_clamped [silu]")
      ->group(layer);
  command.add_flag("--no-gate", options.shared.no_gate, "Plain experts: no gate beside the up matrix")->group(layer);
  command.add_option("--name", options.name, "What results call a layer given by its sizes [custom]")->group(layer);

  const std::string batch = "Batch";
  command.add_option("--dtype", options.dtypes, "bf16, fp16, tf32, fp32 or fp64 [bf16]")->delimiter(',')->group(batch);
  command.add_option("--ranks", options.ranks, "Ranks the experts are spread over [4]")->delimiter(',')->group(batch);
  command.add_option("--tokens", options.tokens, "Tokens of every rank [64]; a list is a sweep")
      ->delimiter(',')
      ->group(batch);
  command.add_option("--tokens-per-rank", options.tokens_per_rank, "Uneven counts instead: N0,N1,...")->group(batch);
  command
      .add_option("--routing", options.routings,
                  "uniform, zipf:S, all-to-one, histogram:COUNTS.json (a JSON array of one count an expert) or IDS.npy "
                  "[uniform]")
      ->delimiter(',')
      ->group(batch);
  command.add_option("--seed", options.shared.seed, "Seed of everything generated")
      ->check(whole_number())
      ->capture_default_str()
      ->group(batch);

  add_execution_options(command, options.shared);

  const std::string measurement = "Measurement";
  command.add_option("--replay", options.replays, "eager, graph [graph on backend cuda, else eager]")
      ->delimiter(',')
      ->group(measurement);
  command.add_option("--warm-up", options.warm_up, "Calls before the timed ones")
      ->capture_default_str()
      ->group(measurement);
  command.add_option("--repeats", options.repeats, "Timed calls")->capture_default_str()->group(measurement);
  command
      .add_option("--budget-ms", options.budget_ms,
                  "Fewer timed calls, 10 at least, where all would take longer than this; 0: never")
      ->capture_default_str()
      ->group(measurement);
  command
      .add_option("--rest-ms", options.rest_ms,
                  "Rest before the timed calls of a case, so that a heavy one does not heat the next")
      ->capture_default_str()
      ->group(measurement);
  command
      .add_option("--verify-tokens", options.shared.verify_tokens,
                  "Tokens compared with the fp64 reference, 0: none [8]")
      ->group(measurement);
  command
      .add_option("--baselines", options.baselines,
                  "Other systems beside ours: torch_nccl, flashinfer and, on one GPU, vllm_triton are timed after our "
                  "cases, files of schema \"baseline\" say what was measured elsewhere (docs/files.md)")
      ->delimiter(',')
      ->group(measurement);

  command.add_option("--baseline-seconds", options.baseline_seconds, "After which a timed system has failed")
      ->capture_default_str()
      ->group(measurement);

  const std::string result = "Result";
  command
      .add_option("--commit", options.commit,
                  "Commit of the program [that of the checkout it was built from, -dirty: edited; else unknown]")
      ->group(result);
  command.add_option("--csv", options.csv, "Write the rows to a CSV file")->group(result);
  command.add_option("--output", options.output, "Results file, schema \"bench\"; written after every row")
      ->group(result);
  command
      .add_flag("--continue", options.resume,
                "Keep the rows of --output that are measured as asked for, and measure the others")
      ->group(result);
  command.add_flag("--json", options.shared.json, "One JSON object on standard output, nothing else")->group(result);
}

}  // namespace flashmoe::cli
