// What the flags mean: one layer, its batch, and how it runs. Nothing large is made here.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "flashmoe/group.hpp"
#include "flashmoe/model_config.hpp"
#include "flashmoe/problem.hpp"
#include "io/hidden_states.hpp"
#include "io/synthetic_routing.hpp"
#include "options.hpp"
#include "outputs.hpp"

namespace flashmoe::cli {

struct Job {
  std::string layer_name;              ///< "qwen3-30b-a3b", "config.json of ...", "custom"
  std::optional<ModelConfig> model;    ///< absent for a custom layer
  std::filesystem::path checkpoint;    ///< empty: weights are generated
  int layer_index = 0;                 ///< of the checkpoint
  Problem problem;                     ///< validated
  GroupOptions group;
  std::optional<ProcessRank> process;  ///< this process's place; absent: all ranks are in this process
  std::vector<std::int64_t> tokens_per_rank;
  std::optional<RoutingSpec> routing;  ///< absent: the checkpoint's router
  std::string routing_name;
  std::optional<HiddenStates> hidden_states;  ///< read; absent: tokens are generated
  std::uint64_t seed = 1;
  std::optional<std::int64_t> verify_tokens;  ///< absent: the command's default
  std::filesystem::path output;        ///< empty: results are not written
  std::vector<InputFile> inputs;       ///< all that it reads

  std::int64_t num_tokens() const;

  /// The ranks of this process.
  std::vector<int> ranks_here() const;
};

/// Throws InvalidArgument, one sentence, on flags that contradict each other or name something that does not exist, and
/// CudaError when the backend asked for cannot run here.
Job make_job(const Options& options, int num_cores);

}  // namespace flashmoe::cli
