// The flags, as given: run and verify take all of them, other commands those that they have a use for.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
class Validator;
}

namespace flashmoe::cli {

struct Options {
  // Which layer: a preset, a config, a layer of a checkpoint, or its sizes.
  bool takes_config = true;      ///< the command has --config
  bool takes_checkpoint = true;  ///< the command has --checkpoint
  std::string preset;
  std::string config;
  std::string checkpoint;
  std::optional<int> layer;
  std::optional<int> hidden;
  std::optional<int> intermediate;
  std::optional<int> experts;
  std::optional<int> top_k;
  std::optional<std::string> activation;
  bool no_gate = false;

  // On what.
  std::string dtype = "bf16";
  int ranks = 4;
  std::optional<std::string> tokens;   ///< one count for every rank, or one a rank; absent: kDefaultTokens, or the file's
  std::optional<std::string> routing;  ///< absent: the checkpoint's router, else uniform
  std::string hidden_states;
  std::uint64_t seed = 1;

  // How.
  std::string backend = "auto";
  std::string engine = "auto";
  std::string wire_form = "auto";
  std::string result_form = "auto";
  std::int64_t wave_tokens = 0;
  int wave_ring = 0;
  bool batch_invariant = false;
  int threads = 0;  ///< of one rank; 0: the cores, shared out
  double deadline_seconds = 30.0;
  bool processes = false;
  std::optional<int> rank;    ///< of this process; absent with `processes`: it is rank 0 and starts the others
  std::string group_id;       ///< with `rank`
  std::optional<int> device;  ///< with `rank`; absent: the rank

  // What comes out.
  std::optional<std::int64_t> verify_tokens;
  std::string output;
  bool json = false;

  std::vector<std::string> command_line;  ///< all of it, the program's name first

  static constexpr std::int64_t kDefaultTokens = 64;

  /// Whether any flag names a layer.
  bool names_a_layer() const {
    return !preset.empty() || !config.empty() || !checkpoint.empty() || hidden || intermediate || experts || top_k;
  }
};

/// A word as a shell reads it back.
std::string shell_quoted(const std::string& word);

/// The command line as results say it, for a shell: without the folder of the program, where results go and what else
/// they say.
std::string recorded_command(const Options& options);

/// Adds every flag to a command.
void add_options(CLI::App& command, Options& options);

/// Takes from a command the flags that would change nothing.
void leave_out(CLI::App& command, std::initializer_list<const char*> flags);

/// Takes from a command the flags of group "Processes".
void leave_out_processes(CLI::App& command);

/// Refuses what is no unsigned 64-bit number, signs and overflow included.
CLI::Validator whole_number();

/// Adds the flags of group "Execution".
void add_execution_options(CLI::App& command, Options& options);

}  // namespace flashmoe::cli
