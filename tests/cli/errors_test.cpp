// Bad input of the program: one sentence on standard error, nothing on standard output, exit code 2 (or 4).
#include <gmock/gmock.h>

#include <fmt/format.h>
#include <sys/resource.h>

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "cli/program.hpp"
#include "core/enumerators.hpp"
#include "support/sanitized.hpp"
#include "unit/problem_rules.hpp"

namespace flashmoe {
namespace {

using test::expect_refused;
using test::flashmoe;
using test::Outcome;
using test::TempFolder;

const std::string kSmall = " --backend cpu --hidden 64 --intermediate 96 --experts 8 --top-k 2 ";

/// A problem as flags; empty for one that flags cannot express.
std::string flags_of(const Problem& problem) {
  const bool expressible = is_enumerator(kDTypes, problem.dtype) && is_enumerator(kActivations, problem.activation) &&
                           is_enumerator(kWireForms, problem.wire_form) &&
                           is_enumerator(kResultForms, problem.result_form) &&
                           problem.swiglu_alpha == Problem{}.swiglu_alpha && problem.swiglu_limit == Problem{}.swiglu_limit;
  if (!expressible) return "";
  return fmt::format("--backend cpu --ranks {} --hidden {} --intermediate {} --experts {} --top-k {} --dtype {} --activation {} {} "
                     "--wire-form {} --result-form {} --wave-tokens {} --wave-ring {} {}",
                     problem.num_ranks, problem.hidden, problem.intermediate, problem.num_experts, problem.top_k,
                     to_string(problem.dtype), to_string(problem.activation), problem.gated ? "" : "--no-gate",
                     to_string(problem.wire_form), to_string(problem.result_form), problem.wave_tokens,
                     problem.wave_ring, problem.batch_invariant ? "--batch-invariant" : "");
}

TEST(CliErrors, every_rule_of_validate_has_its_sentence) {
  int num_rules = 0;
  for (const ProblemRule& rule : problem_rules()) {
    const std::string flags = flags_of(rule.problem);
    const std::int64_t tokens = rule.problem.max_tokens;
    if (flags.empty() || tokens < 1 || tokens > Limits::max_tokens) continue;  // --tokens has a sentence of its own
    SCOPED_TRACE(rule.name);
    expect_refused(fmt::format("verify --tokens {} {}", tokens, flags), rule.message);
    ++num_rules;
  }
  EXPECT_GE(num_rules, 20);
  EXPECT_EQ(flashmoe("verify --tokens 4 " + flags_of(valid_problem())).exit_code, 0);
}

TEST(CliErrors, names_that_do_not_exist_are_listed_against_those_that_do) {
  expect_refused("run --preset gpt-9", "qwen3-30b-a3b");
  expect_refused("run --dtype fp8" + kSmall, "bf16, fp16, tf32, fp32, fp64");
  expect_refused("run --activation swish" + kSmall, "silu, gelu");
  expect_refused("run --wire-form wavy" + kSmall, "auto, counted, lined");
  expect_refused("run --result-form none" + kSmall, "auto, per_route, pre_reduced");
  expect_refused("run --backend tpu --preset dbrx", "backend (tpu) must be one of auto, cpu, cuda");
  expect_refused("run --engine fast --preset dbrx", "engine (fast) must be one of auto, portable, hopper");
  expect_refused("run --engine hopper" + kSmall, "engine (hopper) must be automatic (auto) on backend cpu");
  expect_refused("run --routing nowhere" + kSmall, "uniform, zipf:S, all-to-one");
  expect_refused("run --routing zipf:-1" + kSmall, "zipf:");
}

TEST(CliErrors, the_layer_is_named_in_one_way) {
  expect_refused("run", "must be named in one way, got none");
  expect_refused("run --preset dbrx --config x.json", "got --preset and --config");
  expect_refused("run --preset dbrx --hidden 64", "got --preset and --hidden: give");
  expect_refused("run --preset dbrx --experts 8 --top-k 2", "got --preset and --experts, --top-k: give");
  expect_refused("run --preset dbrx --layer 3", "--checkpoint DIR and --layer N go together");
  expect_refused("run --checkpoint .", "--checkpoint DIR and --layer N go together");
  expect_refused("run --preset dbrx --no-gate", "--preset fixes them");
  expect_refused("run --hidden 64 --intermediate 96 --experts 8", "got --hidden, --intermediate, --experts: add --top-k");
}

TEST(CliErrors, token_counts_are_counts) {
  for (const char* tokens : {"-1", "4,4", "4,,4,4", "4,4,4,4,", "x", "1e3", "4194305", "99999999999999999999"}) {
    SCOPED_TRACE(tokens);
    expect_refused("run --tokens " + std::string(tokens) + kSmall, "tokens (");
  }
}

TEST(CliErrors, numbers_out_of_range_are_refused) {
  expect_refused("run --deadline 0" + kSmall, "deadline_seconds (0) must be above 0");
  expect_refused("run --deadline nan" + kSmall, "deadline_seconds (nan) must be above 0");
  expect_refused("run --threads -1" + kSmall, "threads (-1) must be between 0 and 64");
  expect_refused("run --threads 65" + kSmall, "threads (65) must be between 0 and 64");
  expect_refused("run --verify-tokens -5" + kSmall, "verify-tokens (-5) must be 0 or more");
  expect_refused("run --hidden 99999999999 --intermediate 96 --experts 8 --top-k 2", "--hidden");
  expect_refused("run --seed banana" + kSmall, "--seed");
}

TEST(CliErrors, unknown_commands_and_flags_are_refused) {
  expect_refused("", "subcommand is required");
  expect_refused("fly", "");
  expect_refused("run --fast" + kSmall, "--fast");
  expect_refused("run --preset", "--preset");
}

TEST(CliErrors, files_that_do_not_fit_are_named) {
  const TempFolder folder;
  const auto broken = folder.write("config.json", "{\"model_type\": ");
  expect_refused("run --config " + broken.string(), "config.json");
  expect_refused("run --config " + (folder / "none.json").string(), "none.json must exist");
  expect_refused("run --checkpoint " + (folder / "none").string() + " --layer 0", "must exist");
  const auto states = folder.write("x.npy", "\x93NUMPY\x01");
  expect_refused("run --hidden-states " + states.string() + kSmall, "x.npy");
  const auto ids = folder.write("ids.npy", "not an array");
  expect_refused("run --routing " + ids.string() + kSmall, "ids.npy");
  const std::string none = (folder / "none.npy").string();
  expect_refused("run --routing " + ids.string() + "," + none + kSmall, "none.npy does not exist");
  expect_refused("run --routing " + none + "," + ids.string() + kSmall, "none.npy does not exist");
  expect_refused("run --routing histogram:" + none + kSmall, "none.npy does not exist");
  expect_refused("run --output " + (folder / "y.txt").string() + kSmall, "must be a .safetensors or .npy file");
  expect_refused("run --output " + (folder / "none/y.npy").string() + kSmall, "in an existing folder");
}

TEST(CliErrors, a_job_larger_than_memory_is_refused_with_the_bytes_it_needs) {
  expect_refused("run --hidden 65536 --intermediate 262144 --experts 64 --top-k 8 --ranks 64 --tokens 4194304",
                 "this job needs ");
}

/// While it lives, this process and those it starts have no more address space than so many bytes.
class AddressSpace {
 public:
  explicit AddressSpace(rlim_t bytes) {
    getrlimit(RLIMIT_AS, &before_);
    const rlimit now{bytes, before_.rlim_max};
    setrlimit(RLIMIT_AS, &now);
  }
  ~AddressSpace() { setrlimit(RLIMIT_AS, &before_); }
  AddressSpace(const AddressSpace&) = delete;
  AddressSpace& operator=(const AddressSpace&) = delete;

 private:
  rlimit before_{};
};

/// OpenBLAS asks for ever for what it does not get.
TEST(CliErrors, a_job_without_address_space_ends_and_says_what_to_use_less_of) {
  if (test::kSanitized) GTEST_SKIP() << "sanitizers want terabytes of it";
  setenv("OPENBLAS_NUM_THREADS", "1", 1);  // threads of its own would want some, too, and are never used
  for (const rlim_t mebibytes : {220, 300}) {
    const AddressSpace limit(mebibytes << 20);
    const Outcome outcome = flashmoe("verify" + kSmall + "--tokens 16 --threads 2");
    EXPECT_EQ(outcome.exit_code, 2) << mebibytes << outcome.err;
    EXPECT_THAT(outcome.err, testing::HasSubstr("use fewer")) << mebibytes;
  }
  unsetenv("OPENBLAS_NUM_THREADS");
}

TEST(CliErrors, a_cuda_backend_that_is_not_there_ends_with_4) {
  const std::string command = "run --tokens 1 --backend cuda --hidden 64 --intermediate 96 --experts 8 --top-k 2";
  if (flashmoe(command).exit_code == 0) GTEST_SKIP() << "this machine has the CUDA backend";
  expect_refused(command, "backend (cuda) needs", 4);
}

TEST(CliErrors, a_seed_is_a_whole_number) {
  for (const char* seed : {"-1", "18446744073709551616", "1.5", "0x10", "''"}) {
    expect_refused(fmt::format("verify --tokens 1 --seed={}", seed) + kSmall, "must be a whole number from 0 to 2^64 - 1");
  }
  EXPECT_EQ(flashmoe("verify --tokens 1 --seed=18446744073709551615" + kSmall).exit_code, 0);
}

TEST(CliErrors, what_is_no_number_is_named) {
  expect_refused("run --ranks=x" + kSmall, "--ranks: (x) must be a whole number");
  expect_refused("run --threads=1.5" + kSmall, "--threads: (1.5) must be a whole number");
  expect_refused("run --deadline=soon" + kSmall, "--deadline: (soon) must be a number");
  expect_refused("bench --tokens 1,x" + kSmall, "--tokens: (x) must be a whole number");
  expect_refused("bench 16 64 96 8 2x", "sizes: (2x) must be a whole number");
  expect_refused("run --ranks=99999999999" + kSmall, "--ranks = 99999999999: the number is too large");
  EXPECT_EQ(flashmoe("verify --tokens 1 --deadline=2e1" + kSmall).exit_code, 0);
}

TEST(CliErrors, a_command_that_does_not_exist_is_named) {
  expect_refused("foo", "no command is called foo");
  expect_refused("", "A subcommand is required");
}

TEST(CliErrors, a_flag_that_would_change_nothing_is_refused_and_not_in_the_help) {
  const std::pair<std::string, std::vector<std::string>> cases[] = {
      {"info", {"--routing", "--seed", "--deadline", "--verify-tokens", "--output", "--rank"}},
      {"route", {"--routing", "--engine", "--wire-form", "--result-form", "--wave-tokens", "--wave-ring", "--batch-invariant",
                 "--threads", "--deadline", "--verify-tokens", "--device"}},
      {"trace", {"--checkpoint", "--layer", "--output", "--group-id"}},
  };
  for (const auto& [command, flags] : cases) {
    const std::string help = flashmoe(command + " --help").out;
    EXPECT_THAT(help, testing::HasSubstr("--top-k"));
    EXPECT_THAT(help, testing::Not(testing::HasSubstr("--processes")));
    expect_refused(command + " --processes" + kSmall, command + " has no flag --processes");
    for (const std::string& flag : flags) {
      EXPECT_THAT(help, testing::Not(testing::HasSubstr(flag + " "))) << command;
      expect_refused(command + kSmall + flag + " 1", command + " has no flag " + flag);
    }
  }
  expect_refused("bench --backend cpu --preset thesis --name small", "--name (small) goes with a layer given by its sizes");
}

TEST(CliErrors, a_flag_that_a_command_does_not_have_is_named) {
  for (const std::string flag : {"--config /x", "--checkpoint x", "--layer 3", "--layer=3"}) {
    const std::string name = flag.substr(0, flag.find_first_of(" ="));
    expect_refused("bench" + kSmall + flag, "bench has no flag " + name + " (flashmoe bench --help lists its flags)");
  }
  expect_refused("run --fast" + kSmall, "run has no flag --fast (flashmoe run --help lists its flags)");
  expect_refused("--fast", "(flashmoe --help lists the commands)");
}

TEST(CliErrors, a_flag_that_is_given_twice_is_named) {
  expect_refused("run --hidden 64" + kSmall, "--hidden is given more than once: leave one out");
  expect_refused("bench --csv a --csv b" + kSmall, "--csv is given more than once: leave one out");
}

}  // namespace
}  // namespace flashmoe
