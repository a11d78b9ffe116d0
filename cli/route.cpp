// The command `route`: a layer's router over a batch.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>
#include <span>
#include <string>
#include <system_error>
#include <vector>

#include "batch.hpp"
#include "commands.hpp"
#include "flashmoe/error.hpp"
#include "interruption.hpp"
#include "io/npy.hpp"
#include "job.hpp"
#include "machine.hpp"
#include "progress.hpp"
#include "router_of.hpp"

namespace flashmoe::cli {

namespace {

// fp32 sums against fp64 ones: weights may differ by so much, and choices between scores closer than that.
constexpr double kWeightTolerance = 1e-3;
constexpr double kMostOtherChoices = 1e-2;

bool can_be_written(const std::filesystem::path& file) {
  const std::filesystem::path folder = file.has_parent_path() ? file.parent_path() : ".";
  std::error_code ignored;
  return file.extension() == ".npy" && file.string().find(',') == std::string::npos &&
         std::filesystem::is_directory(folder, ignored) && !std::filesystem::is_directory(file, ignored);
}

/// Files of --output, which are not those of a layer's results.
struct RoutingFiles {
  std::string ids, weights;

  /// Says before a long run what would fail after it.
  explicit RoutingFiles(const std::string& output) {
    const std::size_t comma = output.find(',');
    ids = output.substr(0, comma);
    if (comma != std::string::npos) weights = output.substr(comma + 1);
    const bool right = output.empty() || (can_be_written(ids) && ids != weights &&
                                          (comma == std::string::npos || can_be_written(weights)));
    if (!right) {
      throw InvalidArgument(
          fmt::format("output ({}) must be IDS.npy or IDS.npy,WEIGHTS.npy, two files in existing folders", output));
    }
  }
};

void write(const RoutingFiles& files, const RankRouting& routing, std::int64_t num_tokens, int top_k) {
  const std::vector<std::int64_t> shape{num_tokens, top_k};
  if (!files.ids.empty()) write_npy(files.ids, NpyType::int32, shape, std::as_bytes(std::span(routing.topk_ids)));
  if (!files.weights.empty())
    write_npy(files.weights, NpyType::float32, shape, std::as_bytes(std::span(routing.topk_weights)));
}

/// How far routes are from those of the fp64 router.
struct RouteDeviation {
  std::int64_t num_routes = 0;
  std::int64_t num_other_choices = 0;  ///< other experts
  double weight_error = 0;             ///< largest difference of a weight, where the experts are the same

  bool passed() const {
    return weight_error <= kWeightTolerance &&
           static_cast<double>(num_other_choices) <= kMostOtherChoices * static_cast<double>(num_routes);
  }
};

RouteDeviation deviation_of(const RankRouting& got, const RankRouting& wanted) {
  RouteDeviation deviation{.num_routes = static_cast<std::int64_t>(got.topk_ids.size())};
  for (std::size_t i = 0; i < got.topk_ids.size(); ++i) {
    if (got.topk_ids[i] != wanted.topk_ids[i]) {
      ++deviation.num_other_choices;
    } else {
      const double error = std::fabs(static_cast<double>(got.topk_weights[i]) - wanted.topk_weights[i]);
      // A NaN once seen stays.
      if (!(error <= deviation.weight_error) && !std::isnan(deviation.weight_error)) deviation.weight_error = error;
    }
  }
  return deviation;
}

}  // namespace

ExitCode route(const Options& options) {
  const RoutingFiles files(options.output);
  const Interruption interruption;
  Options of_job = options;
  of_job.output.clear();
  const Job job = make_job(of_job, this_machine().num_cores);
  check_outputs({{"--output", files.ids}, {"--output", files.weights}}, job.inputs);
  std::optional<CheckpointLayer> checkpoint;
  if (!job.checkpoint.empty()) checkpoint = load_checkpoint_layer(job.checkpoint, job.layer_index, job.problem.dtype);
  const RouterOf router(job, checkpoint);
  const std::int64_t num_tokens = job.num_tokens();
  const std::vector<std::byte> x =
      job.hidden_states ? job.hidden_states->rows
                        : generate_tokens(job.problem.dtype, job.seed, 0, num_tokens, job.problem.hidden);
  const ConstRows rows{x.data(), num_tokens};
  const RankRouting routing = [&] {
    const Stage stage("routing", num_tokens);
    return router.route(rows, job.group.backend);
  }();
  // Backend cpu is the fp64 router.
  const bool compared = job.group.backend != BackendKind::cpu;
  const RouteDeviation deviation =
      compared ? deviation_of(routing, router.route(rows, BackendKind::cpu)) : RouteDeviation{};
  write(files, routing, num_tokens, job.problem.top_k);

  std::vector<std::int64_t> loads(static_cast<std::size_t>(job.problem.num_experts));
  for (const std::int32_t expert : routing.topk_ids) ++loads[static_cast<std::size_t>(expert)];
  const auto [fewest, most] = std::minmax_element(loads.begin(), loads.end());
  const double mean = static_cast<double>(routing.topk_ids.size()) / static_cast<double>(loads.size());
  if (options.json) {
    nlohmann::json result{{"command", "route"},
                          {"layer", job.layer_name},
                          {"backend", to_string(job.group.backend)},
                          {"function", to_string(router.config().function)},
                          {"num_experts", job.problem.num_experts},
                          {"top_k", job.problem.top_k},
                          {"num_tokens", num_tokens},
                          {"tokens_per_expert", loads}};
    if (compared) {
      result["other_choices"] = deviation.num_other_choices;
      result["max_weight_error"] = deviation.weight_error;
      result["passed"] = deviation.passed();
    }
    print(result.dump() + '\n');
  } else {
    print(fmt::format("{}: {} of {} tokens over {} experts, top {}, on backend {}\n", job.layer_name,
                      to_string(router.config().function), num_tokens, job.problem.num_experts, job.problem.top_k,
                      to_string(job.group.backend)));
    print(fmt::format("tokens an expert: {} at least, {:.1f} on average, {} at most\n", *fewest, mean, *most));
    if (compared) {
      print(fmt::format("{}: {} of {} choices as the fp64 router's, weights within {:.1e}\n",
                        deviation.passed() ? "passed" : "FAILED", deviation.num_routes - deviation.num_other_choices,
                        deviation.num_routes, deviation.weight_error));
    }
  }
  return deviation.passed() ? kRight : kVerificationFailed;
}

}  // namespace flashmoe::cli
