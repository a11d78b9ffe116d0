#include "bench_cases.hpp"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "core/printable.hpp"
#include "flashmoe/error.hpp"

namespace flashmoe::cli {

namespace {

/// The list, or one element that stands for the default.
template <class T>
std::vector<T> or_default(std::vector<T> list, T value) {
  if (list.empty()) list.push_back(std::move(value));
  return list;
}

int size_between(const char* name, std::int64_t value, std::int64_t high) {
  if (value < 1 || value > high) {
    throw InvalidArgument(fmt::format("{} ({}) must be between 1 and {}", name, value, high));
  }
  return static_cast<int>(value);
}

/// The short form written out as flags.
BenchOptions without_short_form(BenchOptions options) {
  if (options.sizes.empty()) return options;
  const Options& shared = options.shared;
  if (shared.hidden || shared.intermediate || shared.top_k || !options.experts.empty() || !options.presets.empty() ||
      !options.tokens.empty() || !options.tokens_per_rank.empty()) {
    throw InvalidArgument(
        "the short form names tokens, hidden, intermediate, experts and top k: leave out the flags for them "
        "and --preset, or the short form");
  }
  options.tokens = {options.sizes[0]};
  options.shared.hidden = size_between("hidden", options.sizes[1], Limits::hidden);
  options.shared.intermediate = size_between("intermediate", options.sizes[2], Limits::intermediate);
  options.experts = {size_between("experts", options.sizes[3], Limits::num_experts)};
  options.shared.top_k = size_between("top k", options.sizes[4], Limits::top_k);
  options.sizes.clear();
  return options;
}

void check_name(const BenchOptions& options) {
  if (options.name.empty() || options.presets.empty()) return;
  throw InvalidArgument(fmt::format("--name ({}) goes with a layer given by its sizes, and --preset has a name: leave one out",
                                    printable(options.name)));
}

/// One option set a layer: every preset, or every expert count of a layer given by its sizes.
std::vector<Options> layers_of(const BenchOptions& options) {
  std::vector<Options> layers;
  for (const std::string& preset : options.presets) {
    layers.push_back(options.shared);
    layers.back().preset = preset;
    if (!options.experts.empty()) layers.back().experts = options.experts.front();  // refused by make_job()
  }
  if (!layers.empty()) return layers;
  for (const int experts : or_default(options.experts, 0)) {
    layers.push_back(options.shared);
    if (experts != 0) layers.back().experts = experts;
  }
  return layers;
}

std::vector<std::string> tokens_of(const BenchOptions& options) {
  if (!options.tokens_per_rank.empty()) {
    if (!options.tokens.empty()) {
      throw InvalidArgument(
          "--tokens sweeps over counts for all ranks and --tokens-per-rank fixes one a rank: give one of them");
    }
    return {options.tokens_per_rank};
  }
  std::vector<std::string> texts;
  for (const std::int64_t count : or_default(options.tokens, Options::kDefaultTokens))
    texts.push_back(fmt::format("{}", count));
  return texts;
}

Replay parse_replay(const std::string& text, BackendKind backend) {
  if (text.empty()) return backend == BackendKind::cuda ? Replay::graph : Replay::eager;
  if (text != "eager" && text != "graph") {
    throw InvalidArgument(fmt::format("replay ({}) must be one of eager, graph", printable(text)));
  }
  if (text == "graph" && backend != BackendKind::cuda) {
    throw InvalidArgument("replay (graph) needs backend cuda: use eager, or another backend");
  }
  return text == "graph" ? Replay::graph : Replay::eager;
}

void check_counts(const BenchOptions& options) {
  const auto require = [](const char* name, int value, int low) {
    constexpr int kMost = 100000;
    if (value >= low && value <= kMost) return;
    throw InvalidArgument(fmt::format("{} ({}) must be between {} and {}", name, value, low, kMost));
  };
  require("repeats", options.repeats, 1);
  require("warm-up", options.warm_up, 0);
  require("budget-ms", options.budget_ms, 0);
  require("rest-ms", options.rest_ms, 0);
  require("baseline-seconds", options.baseline_seconds, 1);
  if (options.budget_ms > 0 && options.warm_up == 0) {
    throw InvalidArgument("budget-ms goes by what a call before the timed ones takes: give --warm-up 1 or more");
  }
}

}  // namespace

std::vector<BenchCase> make_cases(const BenchOptions& given, int num_cores) {
  check_counts(given);
  const BenchOptions options = without_short_form(given);
  check_name(options);
  std::vector<BenchCase> cases;
  for (Options one : layers_of(options)) {
    for (const std::string& dtype : or_default<std::string>(options.dtypes, "bf16")) {
      one.dtype = dtype;
      for (const int ranks : or_default(options.ranks, Options{}.ranks)) {
        one.ranks = ranks;
        for (const std::string& tokens : tokens_of(options)) {
          one.tokens = tokens;
          for (const std::string& routing : or_default<std::string>(options.routings, "uniform")) {
            one.routing = routing;
            for (const std::string& replay : or_default<std::string>(options.replays, "")) {
              Job job = make_job(one, num_cores);
              if (!options.name.empty()) job.layer_name = options.name;
              const Replay chosen = parse_replay(replay, job.group.backend);
              cases.push_back({.job = std::move(job), .replay = chosen});
            }
          }
        }
      }
    }
  }
  return cases;
}

}  // namespace flashmoe::cli
