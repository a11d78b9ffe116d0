#include "job.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <numeric>
#include <string_view>
#include <system_error>

#include "api/checks.hpp"
#include "api/group_state.hpp"
#include "core/printable.hpp"
#include "flashmoe/error.hpp"

namespace flashmoe::cli {

namespace {

/// Model and place of the weights: exactly one of the four ways to name a layer.
void choose_layer(const Options& options, Job& job) {
  std::vector<std::string> ways;
  if (!options.preset.empty()) ways.emplace_back("--preset");
  if (!options.config.empty()) ways.emplace_back("--config");
  if (!options.checkpoint.empty()) ways.emplace_back("--checkpoint");
  std::vector<std::string> sizes;
  std::vector<std::string> missing;
  (options.hidden ? sizes : missing).emplace_back("--hidden");
  (options.intermediate ? sizes : missing).emplace_back("--intermediate");
  (options.experts ? sizes : missing).emplace_back("--experts");
  (options.top_k ? sizes : missing).emplace_back("--top-k");
  const bool custom = !sizes.empty();
  if (custom) ways.push_back(fmt::format("{}", fmt::join(sizes, ", ")));
  if (ways.size() != 1) {
    throw InvalidArgument(fmt::format("the layer must be named in one way, got {}: give --preset NAME, {}{}or --hidden H "
                                      "--intermediate I --experts E --top-k K",
                                      ways.empty() ? "none" : fmt::format("{}", fmt::join(ways, " and ")),
                                      options.takes_config ? "--config FILE, " : "",
                                      options.takes_checkpoint ? "--checkpoint DIR --layer N, " : ""));
  }
  if (custom && !missing.empty()) {
    throw InvalidArgument(fmt::format("a layer given by its sizes needs all four, got {}: add {}", ways.front(),
                                      fmt::join(missing, ", ")));
  }
  if (options.checkpoint.empty() == options.layer.has_value()) {
    throw InvalidArgument("--checkpoint DIR and --layer N go together: give both, or neither");
  }
  if (!custom && (options.activation || options.no_gate)) {
    throw InvalidArgument(fmt::format("--activation and --no-gate go with --hidden, but {} fixes them: leave them out",
                                      ways.front()));
  }
  if (!options.preset.empty()) job.model = model_preset(options.preset);
  if (!options.config.empty()) job.model = load_model_config(options.config);
  if (!options.checkpoint.empty()) {
    job.model = load_model_config(options.checkpoint);
    job.checkpoint = options.checkpoint;
    job.layer_index = *options.layer;
  }
  job.layer_name = job.model ? job.model->name : "custom";
}

Problem choose_problem(const Options& options, const Job& job, std::int64_t max_tokens) {
  const DType dtype = parse_dtype(options.dtype);
  Problem problem;
  if (job.model) {
    problem = make_problem(*job.model, options.ranks, max_tokens, dtype);
  } else {
    problem = {.num_ranks = options.ranks,
               .hidden = options.hidden.value_or(0),
               .intermediate = options.intermediate.value_or(0),
               .num_experts = options.experts.value_or(0),
               .top_k = options.top_k.value_or(0),
               .max_tokens = max_tokens,
               .dtype = dtype,
               .activation = parse_activation(options.activation.value_or("silu")),
               .gated = !options.no_gate};
  }
  problem.wire_form = parse_wire_form(options.wire_form);
  problem.result_form = parse_result_form(options.result_form);
  problem.wave_tokens = options.wave_tokens;
  problem.wave_ring = options.wave_ring;
  problem.batch_invariant = options.batch_invariant;
  return problem;
}

std::vector<std::int64_t> parse_counts(std::string_view text) {
  std::vector<std::int64_t> counts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    std::int64_t count = -1;
    const auto [stop, error] = std::from_chars(text.data() + begin, text.data() + end, count);
    if (error != std::errc{} || stop != text.data() + end || count < 0 || count > Limits::max_tokens) {
      throw InvalidArgument(fmt::format("tokens ({}) must be counts between 0 and {}, one for all ranks or one a rank, as in "
                                        "64 or 64,0,128", printable(text), Limits::max_tokens));
    }
    counts.push_back(count);
    begin = end + 1;
  }
  return counts;
}

/// `num_rows` shared out evenly, earlier ranks taking the rest.
std::vector<std::int64_t> share_out(std::int64_t num_rows, int num_ranks) {
  std::vector<std::int64_t> counts;
  for (int rank = 0; rank < num_ranks; ++rank) counts.push_back(num_rows / num_ranks + (rank < num_rows % num_ranks ? 1 : 0));
  return counts;
}

std::vector<std::int64_t> choose_tokens(const Options& options, const Job& job) {
  const auto num_ranks = static_cast<std::size_t>(options.ranks);
  if (job.hidden_states && !options.tokens) return share_out(job.hidden_states->num_tokens, options.ranks);
  std::vector<std::int64_t> counts{Options::kDefaultTokens};
  if (options.tokens) counts = parse_counts(*options.tokens);
  if (counts.size() == 1) counts.resize(num_ranks, counts.front());
  if (counts.size() != num_ranks) {
    throw InvalidArgument(fmt::format("tokens ({}) has {} counts for {} ranks: give one for all ranks, or one a rank",
                                      *options.tokens, counts.size(), num_ranks));
  }
  const std::int64_t sum = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  if (job.hidden_states && sum != job.hidden_states->num_tokens) {
    throw InvalidArgument(fmt::format("tokens ({}) add up to {} over {} ranks, but {} holds {}: leave --tokens out to "
                                      "share them out evenly", *options.tokens, sum, num_ranks, options.hidden_states,
                                      job.hidden_states->num_tokens));
  }
  return counts;
}

void choose_routing(const Options& options, Job& job) {
  if (!options.routing && !job.checkpoint.empty()) {
    job.routing_name = "router";
    return;
  }
  job.routing_name = options.routing.value_or("uniform");
  job.routing = parse_routing_spec(job.routing_name);
}

BackendKind choose_backend(const std::string& name) {
  if (name == "cpu") return BackendKind::cpu;
  if (name != "auto" && name != "cuda") {
    throw InvalidArgument(fmt::format("backend ({}) must be one of auto, cpu, cuda", printable(name)));
  }
  try {
    require_backend(BackendKind::cuda);
    return BackendKind::cuda;
  } catch (const CudaError&) {
    if (name == "cuda") throw;
    return BackendKind::cpu;
  }
}

EngineKind choose_engine(const std::string& name) {
  if (name == "auto") return EngineKind::automatic;
  if (name == "portable") return EngineKind::portable;
  if (name == "hopper") return EngineKind::hopper;
  throw InvalidArgument(fmt::format("engine ({}) must be one of auto, portable, hopper", printable(name)));
}

/// Where this process is among those of a run; rank 0 starts the others unless a launcher has.
std::optional<ProcessRank> choose_process(const Options& options) {
  if (!options.processes) return std::nullopt;
  if (options.backend == "cpu") {
    throw InvalidArgument("--processes gives every rank a GPU of its own, and backend cpu has none: use --backend cuda, or "
                          "leave --processes out");
  }
  try {
    require_backend(BackendKind::cuda);
  } catch (const CudaError& error) {
    throw CudaError(fmt::format("--processes gives every rank a GPU of its own, but {}, and leave --processes out", error.what()));
  }
  const auto now = std::chrono::system_clock::now().time_since_epoch().count();
  const int rank = options.rank.value_or(0);
  if (options.rank) check_group_id(options.group_id);
  return ProcessRank{.group_id = options.rank ? options.group_id : fmt::format("run-{}-{:x}", getpid(), now),
                     .rank = rank,
                     .num_ranks = options.ranks,
                     .device = options.device.value_or(rank)};
}

std::vector<InputFile> inputs_of(const Options& options, const RoutingSpec& routing) {
  std::filesystem::path config = options.config;
  std::error_code ignored;
  if (std::filesystem::is_directory(config, ignored)) config /= "config.json";
  std::vector<InputFile> inputs{{"--config", config},
                                {"--checkpoint", options.checkpoint},
                                {"--hidden-states", options.hidden_states},
                                {"--routing", routing.histogram_file},
                                {"--routing", routing.ids_file},
                                {"--routing", routing.weights_file}};
  std::erase_if(inputs, [](const InputFile& input) { return input.path.empty(); });
  return inputs;
}

/// Says before a long run what would fail, or lose a file, after it.
void check_output(const Job& job) {
  const std::filesystem::path& output = job.output;
  if (output.empty()) return;
  const std::filesystem::path folder = output.has_parent_path() ? output.parent_path() : ".";
  std::error_code ignored;
  if ((output.extension() != ".npy" && output.extension() != ".safetensors") ||
      !std::filesystem::is_directory(folder, ignored)) {
    throw InvalidArgument(fmt::format("output ({}) must be a .safetensors or .npy file in an existing folder",
                                      output.string()));
  }
  check_outputs({{"--output", output}}, job.inputs);
}

}  // namespace

std::int64_t Job::num_tokens() const {
  return std::accumulate(tokens_per_rank.begin(), tokens_per_rank.end(), std::int64_t{0});
}

std::vector<int> Job::ranks_here() const {
  if (process) return {process->rank};
  std::vector<int> all(static_cast<std::size_t>(problem.num_ranks));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

Job make_job(const Options& options, int num_cores) {
  Job job;
  choose_layer(options, job);
  job.process = choose_process(options);
  job.group.backend = job.process ? BackendKind::cuda : choose_backend(options.backend);
  job.group.engine = choose_engine(options.engine);
  job.problem = choose_problem(options, job, 1);
  validate(job.problem);  // before a file is read for it
  if (!options.hidden_states.empty()) {
    job.hidden_states = read_hidden_states(options.hidden_states, job.problem.hidden, job.problem.dtype);
  }
  job.tokens_per_rank = choose_tokens(options, job);
  job.problem.max_tokens =
      std::max<std::int64_t>(1, *std::max_element(job.tokens_per_rank.begin(), job.tokens_per_rank.end()));
  validate(job.problem);
  choose_routing(options, job);

  const int threads = options.threads > 0 ? options.threads : std::max(1, num_cores / options.ranks);
  job.group.deadline_seconds = options.deadline_seconds;
  job.group.num_threads = threads;
  job.group.num_processors = threads;
  if (options.threads < 0 || options.threads > 64) {
    throw InvalidArgument(fmt::format("threads ({}) must be between 0 and 64: give the threads of one rank", options.threads));
  }
  job.seed = options.seed;
  if (options.verify_tokens && *options.verify_tokens < 0) {
    throw InvalidArgument(fmt::format("verify-tokens ({}) must be 0 or more", *options.verify_tokens));
  }
  job.verify_tokens = options.verify_tokens;
  job.output = options.output;
  job.inputs = inputs_of(options, job.routing.value_or(RoutingSpec{}));
  check_output(job);
  check_options(options.ranks, job.group);
  return job;
}

}  // namespace flashmoe::cli
