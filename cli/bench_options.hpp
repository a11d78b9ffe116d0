// The flags of `flashmoe bench`, as given: lists are what a sweep goes over.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "options.hpp"

namespace CLI {
class App;
}

namespace flashmoe::cli {

struct BenchOptions {
  /// What all cases share. Of its fields that a list below stands for, none is read.
  Options shared;

  // Axes of the sweep; an empty one is the default of `run`.
  std::vector<std::string> presets;
  std::vector<int> experts;
  std::vector<std::string> dtypes;
  std::vector<int> ranks;
  std::vector<std::int64_t> tokens;  ///< of every rank
  std::string tokens_per_rank;       ///< "N0,N1,...": uneven counts, instead of `tokens`; empty: none
  std::vector<std::string> routings;
  std::vector<std::string> replays;  ///< "eager", "graph"

  /// The short form: tokens of every rank, hidden, intermediate, experts, top_k. Empty, or all five.
  std::vector<std::int64_t> sizes;

  std::string name;  ///< of a layer given by its sizes
  int warm_up = 3;   ///< calls before the timed ones
  int repeats = 10;
  int budget_ms = 0;                   ///< the timed calls of a case end after about so long, 0: when all are done
  int rest_ms = 0;                     ///< before the timed calls of a case
  int baseline_seconds = 600;          ///< after which a script has failed
  std::vector<std::string> baselines;  ///< other systems: scripts by name, or files with measurements
  std::string commit;                  ///< of the program; empty: of the checkout it was built from
  std::string csv;
  std::string output;  ///< results file; empty: none
  bool resume = false;
};

void add_bench_options(CLI::App& command, BenchOptions& options);

}  // namespace flashmoe::cli
