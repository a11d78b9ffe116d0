
#include <algorithm>
#include <atomic>
#include <exception>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "api/layer_factory.hpp"
#include "batch.hpp"
#include "commands.hpp"
#include "comparison.hpp"
#include "execute.hpp"
#include "io/hidden_states.hpp"
#include "io/synthetic_experts.hpp"
#include "job.hpp"
#include "machine.hpp"
#include "memory_plan.hpp"
#include "progress.hpp"
#include "run_report.hpp"
#include "watched_experts.hpp"

namespace flashmoe::cli {

namespace {

constexpr std::int64_t kSampledTokens = 64;
constexpr std::int64_t kAllTokens = std::numeric_limits<std::int64_t>::max();

/// Has every expert made, so that the measured call finds them in memory.
void prepare(const ExpertSource& experts, const std::vector<int>& wanted, int num_threads) {
  Stage stage("making weights", static_cast<std::int64_t>(wanted.size()));
  std::atomic<std::size_t> next{0};
  std::exception_ptr error;
  std::mutex mutex;
  std::vector<std::jthread> threads;
  for (int thread = 0; thread < num_threads; ++thread) {
    threads.emplace_back([&] {
      try {
        for (std::size_t i = next++; i < wanted.size(); i = next++) {
          experts.expert(wanted[i]);
          stage.advance();
        }
      } catch (...) {
        const std::lock_guard lock(mutex);
        error = std::current_exception();
        next = wanted.size();
      }
    });
  }
  threads.clear();
  if (error) std::rethrow_exception(error);
}

ExitCode run_and_compare(const Options& options, const char* command, std::int64_t default_tokens) {
  const Machine machine = this_machine();
  Job job = make_job(options, machine.num_cores);
  const Group group = Group::local(job.problem.num_ranks, job.group);
  const LayerInfo info = LayerFactory::plan(group, job.problem);
  const std::int64_t num_compared = std::min(job.verify_tokens.value_or(default_tokens), job.num_tokens());
  const MemoryPlan memory = plan_memory(job, info, num_compared, machine.num_cores, machine.available_bytes);

  std::optional<CheckpointLayer> checkpoint;
  std::shared_ptr<const ExpertSource> source;
  if (!job.checkpoint.empty()) {
    checkpoint = load_checkpoint_layer(job.checkpoint, job.layer_index, job.problem.dtype, memory.expert_cache_bytes);
    source = std::make_shared<CheckpointLayer>(*checkpoint);
  } else {
    source = std::make_shared<GeneratedExperts>(job.problem, job.seed, memory.expert_cache_bytes);
  }
  Batch batch = make_batch(job, checkpoint);
  const std::vector<int> used_experts = batch.used_experts();
  const bool weights_in_memory = memory.holds(used_experts.size());
  if (weights_in_memory) prepare(*source, used_experts, machine.num_cores);

  const auto experts = std::make_shared<WatchedExperts>(source, job.problem.num_experts);
  std::vector<CallStats> stats;
  {
    Stage stage("running the layer", static_cast<std::int64_t>(used_experts.size()));
    experts->watch(&stage);
    stats = execute(group, experts, batch);
    experts->watch(nullptr);
  }
  Comparison comparison;
  {
    Stage stage("comparing", static_cast<std::int64_t>(used_experts.size()));
    experts->watch(&stage);
    comparison = compare(batch, *experts, num_compared, job.seed, machine.num_cores);
    experts->watch(nullptr);
  }
  if (!job.output.empty()) {
    write_rows(job.output, "output", job.problem.dtype, {batch.y.data(), batch.num_tokens()}, job.problem.hidden);
  }
  const std::vector<RankLoad> loads = count_routes(batch);
  const RunReport report{.command = command,
                         .job = job,
                         .info = info,
                         .stats = stats,
                         .loads = loads,
                         .comparison = comparison,
                         .weights_in_memory = weights_in_memory};
  print(options.json ? to_json(report).dump() + '\n' : to_text(report));
  return comparison.passed ? kRight : kVerificationFailed;
}

}  // namespace

ExitCode run(const Options& options) { return run_and_compare(options, "run", kSampledTokens); }
ExitCode verify(const Options& options) { return run_and_compare(options, "verify", kAllTokens); }

}  // namespace flashmoe::cli
