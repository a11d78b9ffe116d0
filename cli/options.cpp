#include "options.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <iterator>
#include <string_view>
#include <system_error>

#include "core/printable.hpp"

namespace flashmoe::cli {

CLI::Validator whole_number() {
  return {[](std::string& text) -> std::string {
            std::uint64_t value = 0;
            const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
            if (error == std::errc() && end == text.data() + text.size()) return {};
            return fmt::format("({}) must be a whole number from 0 to 2^64 - 1", printable(text));
          },
          ""};
}

void add_execution_options(CLI::App& command, Options& options) {
  const std::string execution = "Execution";
  command.add_option("--backend", options.backend, "auto, cpu or cuda")->capture_default_str()->group(execution);
  command.add_option("--engine", options.engine, "auto, portable or hopper, on backend cuda")
      ->capture_default_str()->group(execution);
  command.add_option("--wire-form", options.wire_form, "auto, counted or lined")->capture_default_str()->group(execution);
  command.add_option("--result-form", options.result_form, "auto, per_route or pre_reduced")
      ->capture_default_str()->group(execution);
  command.add_option("--wave-tokens", options.wave_tokens, "Tokens of a wave; 0: planned")
      ->capture_default_str()->group(execution);
  command.add_option("--wave-ring", options.wave_ring, "Waves in flight per source; 0: planned")
      ->capture_default_str()->group(execution);
  command.add_flag("--batch-invariant", options.batch_invariant, "Results that do not depend on the rest of the batch")
      ->group(execution);
  command.add_option("--threads", options.threads, "Threads of one rank on the CPU; 0: the cores, shared out")
      ->capture_default_str()->group(execution);
  command.add_option("--deadline", options.deadline_seconds, "Seconds without progress after which the run has failed")
      ->capture_default_str()->group(execution);
}

std::string shell_quoted(const std::string& word) {
  constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=:,./@%";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? "'\\''" : std::string(1, c);
  return quoted + '\'';
}

std::string recorded_command(const Options& options) {
  constexpr std::string_view kWithValue[] = {"--output", "--summary", "--svg", "--chrome", "--csv", "--commit"};
  std::string text = "flashmoe";
  const std::vector<std::string>& words = options.command_line;
  for (std::size_t i = 1; i < words.size(); ++i) {
    const std::string flag = words[i].substr(0, words[i].find('='));
    if (std::find(std::begin(kWithValue), std::end(kWithValue), flag) != std::end(kWithValue)) {
      if (flag == words[i]) ++i;
    } else if (flag != "--continue" && flag != "--json") {
      text += ' ' + shell_quoted(words[i]);
    }
  }
  return text;
}

void add_options(CLI::App& command, Options& options) {
  const std::string layer = "Layer";
  command.add_option("--preset", options.preset, "A model's layer at its real size; `flashmoe info` lists the names")
      ->group(layer);
  command.add_option("--config", options.config, "A Hugging Face config.json; weights are generated")->group(layer);
  command.add_option("--checkpoint", options.checkpoint, "A Hugging Face checkpoint directory, with --layer")->group(layer);
  command.add_option("--layer", options.layer, "Layer of the checkpoint, counted from 0")->group(layer);
  command.add_option("--hidden", options.hidden, "Elements of a token row")->group(layer);
  command.add_option("--intermediate", options.intermediate, "Inner width of an expert")->group(layer);
  command.add_option("--experts", options.experts, "Experts of all ranks together")->group(layer);
  command.add_option("--top-k", options.top_k, "Experts a token takes")->group(layer);
  command.add_option("--activation", options.activation,
                     "silu, gelu, gelu_tanh, relu, relu2, identity or swiglu_clamped [silu]")->group(layer);
  command.add_flag("--no-gate", options.no_gate, "Plain experts: no gate beside the up matrix")->group(layer);

  const std::string batch = "Batch";
  command.add_option("--dtype", options.dtype, "bf16, fp16, tf32, fp32 or fp64; a checkpoint is converted")
      ->capture_default_str()->group(batch);
  command.add_option("--ranks", options.ranks, "Ranks the experts are spread over")->capture_default_str()->group(batch);
  command.add_option("--tokens", options.tokens, "Tokens of every rank, or one count a rank: N0,N1,... [64]")->group(batch);
  command
      .add_option("--routing", options.routing,
                  "uniform, zipf:S, all-to-one, histogram:COUNTS.json (a JSON array of one count an expert) or "
                  "IDS.npy[,WEIGHTS.npy] "
                  "[the checkpoint's router, else uniform]")
      ->group(batch);
  command.add_option("--hidden-states", options.hidden_states,
                     "Token rows of all ranks from a .safetensors or .npy file (bf16 in .npy: as 16-bit integers)")
      ->group(batch);
  command.add_option("--seed", options.seed, "Seed of everything generated")
      ->check(whole_number())->capture_default_str()->group(batch);

  add_execution_options(command, options);

  const std::string processes = "Processes";
  CLI::Option* of_processes = command.add_flag("--processes", options.processes,
                                               "One process a rank, each on a GPU of its own; starts them, unless --rank "
                                               "says that a launcher has")->group(processes);
  CLI::Option* rank = command.add_option("--rank", options.rank, "Rank of this process; every rank gets the same other flags")
                          ->needs(of_processes)->group(processes);
  CLI::Option* group_id = command.add_option("--group-id", options.group_id, "Name that the processes of one run share")
                              ->needs(rank)->group(processes);
  rank->needs(group_id);
  command.add_option("--device", options.device, "GPU of this process [its rank]")->needs(rank)->group(processes);

  const std::string result = "Result";
  command.add_option("--verify-tokens", options.verify_tokens,
                     "Tokens compared with the fp64 reference; 0, in run: none [64 of run, all of verify]")->group(result);
  command.add_option("--output", options.output,
                     "Write the results of all ranks to a .safetensors or .npy file (bf16 in .npy: as 16-bit integers)")
      ->group(result);
  command.add_flag("--json", options.json, "One JSON object on standard output, nothing else")->group(result);
}

void leave_out(CLI::App& command, std::initializer_list<const char*> flags) {
  for (const char* flag : flags) command.remove_option(command.get_option(flag));
}

void leave_out_processes(CLI::App& command) { leave_out(command, {"--processes", "--rank", "--group-id", "--device"}); }

}  // namespace flashmoe::cli
