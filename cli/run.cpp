#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <limits>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "api/layer_factory.hpp"
#include "batch.hpp"
#include "commands.hpp"
#include "comparison.hpp"
#include "execute.hpp"
#include "fabric/bootstrap.hpp"
#include "flashmoe/error.hpp"
#include "gather.hpp"
#include "interruption.hpp"
#include "io/hidden_states.hpp"
#include "io/synthetic_experts.hpp"
#include "job.hpp"
#include "launched_ranks.hpp"
#include "log.hpp"
#include "machine.hpp"
#include "make_experts.hpp"
#include "memory_plan.hpp"
#include "progress.hpp"
#include "run_report.hpp"
#include "watched_experts.hpp"

namespace flashmoe::cli {

namespace {

constexpr std::int64_t kRunTokens = 64;
constexpr std::int64_t kAllTokens = std::numeric_limits<std::int64_t>::max();

struct Command {
  const char* name;
  std::int64_t compared_tokens;   // unless the job says otherwise
  bool needs_comparison = false;  // or else it has not done what it is for
};

/// How long a process may take to start. Once all have met, none is waited for in vain: whoever dies is missed at once.
constexpr double kMeetingSeconds = 60.0;
constexpr double kForever = 1e6;

/// How much longer than the first the last rank may take to bring its weights to its GPU.
constexpr double kCreationSeconds = 600.0;

/// The meeting of a run's processes; null when all ranks are in this one.
std::unique_ptr<fabric::Bootstrap> meet(const Job& job) {
  if (!job.process) return nullptr;
  const ProcessRank& own = *job.process;
  auto meeting = std::make_unique<fabric::Bootstrap>(own.group_id + ".run", own.rank, own.num_ranks, kMeetingSeconds);
  meeting->set_deadline(kForever);
  return meeting;
}

Group make_group(const Job& job) {
  if (!job.process) return Group::local(job.problem.num_ranks, job.group);
  GroupOptions options = job.group;
  options.meeting_seconds = kCreationSeconds;
  return Group::join(*job.process, options);
}

/// Of the wanted experts those whose weights a rank of this process computes with.
std::vector<int> experts_here(const Job& job, std::vector<int> wanted) {
  if (job.process) {
    std::erase_if(wanted, [&](int expert) { return expert / job.problem.num_local_experts() != job.process->rank; });
  }
  return wanted;
}

/// Whether some result was measured against the reference, or there is none.
bool is_compared(const Job& job, const Comparison& comparison) {
  return comparison.all.num_tokens > 0 || job.num_tokens() == 0;
}

ExitCode run_and_compare(Job& job, const Command& command, bool json, const Machine& machine) {
  const std::unique_ptr<fabric::Bootstrap> meeting = meet(job);
  const Group group = make_group(job);
  const LayerInfo info = LayerFactory::plan(group, job.problem);
  const std::int64_t num_compared = std::min(job.verify_tokens.value_or(command.compared_tokens), job.num_tokens());
  // Processes share the machine.
  const int num_processes = job.process ? job.problem.num_ranks : 1;
  const int num_threads = std::max(1, machine.num_cores / num_processes);
  const MemoryPlan memory =
      plan_memory(job, info, num_compared, num_threads, machine.available_bytes / static_cast<std::uint64_t>(num_processes));

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
  if (weights_in_memory) {
    const std::vector<int> wanted = experts_here(job, used_experts);
    Stage stage("making weights", static_cast<std::int64_t>(wanted.size()));
    make_experts(*source, wanted, num_threads, &stage);
  }

  if (meeting) meeting->barrier();  // whoever died by now is named here

  const std::vector<int> ranks = job.ranks_here();
  const auto experts = std::make_shared<WatchedExperts>(source, job.problem.num_experts);
  std::vector<CallStats> stats;
  {
    Stage stage("running the layer", static_cast<std::int64_t>(used_experts.size()));
    experts->watch(&stage);
    stats = execute(group, experts, batch, ranks);
    experts->watch(nullptr);
  }
  std::vector<Deviation> deviations;
  {
    Stage stage("comparing", static_cast<std::int64_t>(used_experts.size()));
    experts->watch(&stage);
    deviations = compare(batch, *experts,
                         {.num_tokens = num_compared, .seed = job.seed, .ranks = ranks, .num_threads = num_threads});
    experts->watch(nullptr);
  }
  if (meeting) {
    gather(*meeting, stats, deviations);
    if (!job.output.empty()) gather_results(*meeting, batch);
    if (meeting->rank() != 0) return kRight;  // rank 0 reports
  }
  if (!job.output.empty()) {
    write_rows(job.output, "output", job.problem.dtype, {batch.y.data(), batch.num_tokens()}, job.problem.hidden);
  }
  const Comparison comparison = judge(job.problem, std::move(deviations));
  const std::vector<RankLoad> loads = count_routes(batch);
  const RunReport report{.command = command.name,
                         .job = job,
                         .info = info,
                         .stats = stats,
                         .loads = loads,
                         .comparison = comparison,
                         .weights_in_memory = weights_in_memory};
  print(json ? to_json(report).dump() + '\n' : to_text(report));
  const bool right = comparison.passed && (is_compared(job, comparison) || !command.needs_comparison);
  return right ? kRight : kVerificationFailed;
}

/// Runs `body` as rank 0 of the processes that it starts. What a rank itself got wrong is thrown rather than what the
/// others saw of it.
template <class Body>
ExitCode with_other_ranks(const Options& options, const Job& job, const Body& body) {
  LaunchedRanks others(options.command_line, *job.process);
  std::exception_ptr error;
  ExitCode code = kRight;
  try {
    code = body();
  } catch (...) {
    error = std::current_exception();
    if (!is_second_hand(error)) throw;
  }
  for (const LaunchedRanks::Ending& ending : others.wait(job.group.deadline_seconds + kMeetingSeconds)) {
    if (ending.code != kRight && (!error || ending.first_hand)) throw_ending(ending);
  }
  if (error) std::rethrow_exception(error);
  return code;
}

ExitCode carry_out(const Options& options, const Command& command) {
  if (command.needs_comparison && options.verify_tokens == 0) {
    throw InvalidArgument(fmt::format("verify-tokens (0) must be 1 or more for {}: give more, or use flashmoe run", command.name));
  }
  const Interruption interruption;
  const Machine machine = this_machine();
  Job job = make_job(options, machine.num_cores);
  const auto body = [&] { return run_and_compare(job, command, options.json, machine); };
  if (job.process && !options.rank) return with_other_ranks(options, job, body);
  if (job.process && job.process->rank != 0) silence_info();  // rank 0 shows the progress
  return body();
}

}  // namespace

ExitCode run(const Options& options) { return carry_out(options, {.name = "run", .compared_tokens = kRunTokens}); }
ExitCode verify(const Options& options) {
  return carry_out(options, {.name = "verify", .compared_tokens = kAllTokens, .needs_comparison = true});
}

}  // namespace flashmoe::cli
