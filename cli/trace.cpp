#include <fmt/chrono.h>
#include <fmt/format.h>

#include <ctime>
#include <filesystem>
#include <limits>
#include <numeric>
#include <optional>

#include "api/layer_factory.hpp"
#include "batch.hpp"
#include "card.hpp"
#include "commands.hpp"
#include "commit.hpp"
#include "comparison.hpp"
#include "execute.hpp"
#include "flashmoe/error.hpp"
#include "flashmoe/version.hpp"
#include "interruption.hpp"
#include "io/new_file.hpp"
#include "io/synthetic_experts.hpp"
#include "job.hpp"
#include "late_rank.hpp"
#include "machine.hpp"
#include "memory_plan.hpp"
#include "outputs.hpp"
#include "run_report.hpp"
#include "table.hpp"
#include "timeline.hpp"
#include "trace_summary.hpp"

namespace flashmoe::cli {

namespace {

/// Calls back to back before the one that leaves its timeline: weights are made, memory is touched, and the ranks,
/// which the host starts one after another, are in step.
constexpr int kCallsBefore = 3;

struct Recording {
  int records = 0;               ///< room of one actor
  std::optional<LateRank> late;  ///< none: all ranks start alike
};

/// A call that leaves its timeline.
std::vector<RankTrace> trace_call(const Job& job, const Group& group,
                                  const std::shared_ptr<const ExpertSource>& experts, Batch& batch,
                                  const Recording& recording) {
  const std::vector<int> ranks = job.ranks_here();
  std::vector<std::optional<Layer>> layers(ranks.size());
  std::vector<RankTrace> traces(ranks.size());
  std::vector<std::unique_ptr<PreparedCalls>> calls(ranks.size());
  for (const int rank : ranks) {
    layers[rank] = LayerFactory::make(group, rank, job.problem, experts);
    traces[rank].capacity = static_cast<std::size_t>(recording.records);
    LayerFactory::trace_to(*layers[rank], &traces[rank]);
    const bool late = recording.late && recording.late->rank == rank;
    calls[rank] =
        LayerFactory::prepare_calls(*layers[rank], batch.x_of(rank), batch.routing_of(rank), batch.y_of(rank),
                                    {.most_calls = kCallsBefore + 1, .hold_last_us = late ? recording.late->us : 0});
  }
  on_every_rank(ranks, [&](int rank) { calls[rank]->run(kCallsBefore + 1); });
  return traces;
}

nlohmann::json to_json(const TraceSummary& summary) {
  nlohmann::json waits;
  for (int cause = 0; cause < kNumWaitCauses; ++cause) {
    waits[std::string(to_string(static_cast<WaitCause>(cause)))] = summary.wait_us[static_cast<std::size_t>(cause)];
  }
  return {{"wall_us", summary.wall_us},
          {"busy_us", summary.busy_us},
          {"wait_us", waits},
          {"overlap_efficiency", summary.overlap_efficiency},
          {"resident_share", summary.resident_share},
          {"busy_share", summary.busy_share},
          {"product_share", summary.product_share},
          {"num_records", summary.num_records},
          {"num_dropped", summary.num_dropped}};
}

std::string to_text(const TraceSummary& summary) {
  std::string text = fmt::format("call {:.1f} us; {} spans\n\n", summary.wall_us, summary.num_records);
  Table busy({"busy, all ranks", "us"});
  for (const auto& [name, us] : summary.busy_us) busy.add({name, fmt::format("{:.1f}", us)});
  Table waits({"waiting, all ranks", "us"});
  for (int cause = 0; cause < kNumWaitCauses; ++cause) {
    waits.add({std::string(to_string(static_cast<WaitCause>(cause))),
               fmt::format("{:.1f}", summary.wait_us[static_cast<std::size_t>(cause)])});
  }
  text += busy.text() + '\n' + waits.text() + '\n';
  text += fmt::format(
      "overlap efficiency {:.1f} %: of the time in which rows are moved, that in which tiles are computed too\n",
      100 * summary.overlap_efficiency);
  text += fmt::format(
      "utilisation {:.1f} % of the call with a processor there (the thesis' SM utilisation), {:.1f} % with it in "
      "a task, {:.1f} % in an up or down product\n",
      100 * summary.resident_share, 100 * summary.busy_share, 100 * summary.product_share);
  if (summary.num_dropped > 0) {
    text += fmt::format("{} spans did not fit, so this is the beginning of the call alone: raise --records\n",
                        summary.num_dropped);
  }
  return text;
}

int records_of(const TraceOptions& options, const Job& job) {
  constexpr int kMost = 1 << 24;
  const int records = options.records.value_or(job.group.backend == BackendKind::cuda ? 1 << 12 : 1 << 16);
  if (records < 1 || records > kMost) {
    throw InvalidArgument(fmt::format("records ({}) must be between 1 and {}", records, kMost));
  }
  return records;
}

std::optional<LateRank> late_rank_of(const TraceOptions& options, const Job& job) {
  if (!options.late_rank) return std::nullopt;
  const int num_ranks = job.problem.num_ranks;
  const LateRank late{.rank = *options.late_rank, .us = *options.late_us};
  if (num_ranks < 2) {
    throw InvalidArgument(
        fmt::format("--late-rank ({}) needs a rank that waits for it, and --ranks is 1: give more", late.rank));
  }
  if (late.rank < 0 || late.rank >= num_ranks) {
    throw InvalidArgument(
        fmt::format("--late-rank ({}) must be in 0..{}, one of the --ranks", late.rank, num_ranks - 1));
  }
  const double deadline_us = 1e6 * job.group.deadline_seconds;
  if (!(late.us > 0 && late.us < deadline_us)) {
    throw InvalidArgument(
        fmt::format("--late-us ({}) must be above 0 and below {}, the --deadline in us", late.us, deadline_us));
  }
  return late;
}

LateSummary late_summary(const std::vector<RankTrace>& traces, const LateRank& late, const Batch& batch,
                         const LayerInfo& info, int m_block_rows) {
  const std::int64_t tokens_ahead = info.wire_form == WireForm::counted ? info.wave_tokens * info.wave_ring
                                                                        : std::numeric_limits<std::int64_t>::max();
  std::vector<std::int64_t> m_blocks;
  for (int rank = 0; rank < batch.problem.num_ranks; ++rank) {
    m_blocks.push_back(m_blocks_without(batch, rank, late.rank, m_block_rows, tokens_ahead));
  }
  return summarise_late(traces, late, m_blocks);
}

}  // namespace

ExitCode trace(const TraceOptions& options) {
  const Interruption interruption;
  const Machine machine = this_machine();
  Job job = make_job(options.shared, machine.num_cores);
  const Recording recording{.records = records_of(options, job), .late = late_rank_of(options, job)};
  check_outputs({{"--chrome", options.chrome}, {"--svg", options.svg}, {"--summary", options.summary, "trace"}},
                job.inputs);
  const Group group = Group::local(job.problem.num_ranks, job.group);
  const LayerInfo info = LayerFactory::plan(group, job.problem);
  const std::int64_t num_compared = std::min(job.verify_tokens.value_or(kSampledTokens), job.num_tokens());
  const MemoryPlan memory = plan_memory(job, info, num_compared, machine.num_cores, machine.available_bytes);
  const auto experts = std::make_shared<GeneratedExperts>(job.problem, job.seed, memory.expert_cache_bytes);
  Batch batch = make_batch(job, std::nullopt);
  const std::vector<RankTrace> traces = trace_call(job, group, experts, batch, recording);
  const Comparison comparison = judge(
      job.problem,
      compare(
          batch, *experts,
          {.num_tokens = num_compared, .seed = job.seed, .ranks = job.ranks_here(), .num_threads = machine.num_cores}));

  std::string title = fmt::format("{}, {} ranks, {} tokens, {}, routing {}; {}", job.layer_name, job.problem.num_ranks,
                                  job.num_tokens(), to_string(job.problem.dtype), job.routing_name, info.engine);
  if (recording.late) title += fmt::format("; rank {} held back {} us", recording.late->rank, recording.late->us);
  if (!options.chrome.empty())
    write_new_file(options.chrome, [&](std::ostream& stream) { write_chrome(traces, stream); });
  if (!options.svg.empty())
    write_new_file(options.svg, [&](std::ostream& stream) { write_svg(traces, title, stream); });
  const TraceSummary summary = summarise(traces);
  const Card card = card_of(job.group.backend, machine);
  std::optional<LateSummary> late;
  if (recording.late) {
    late = late_summary(traces, *recording.late, batch, info, LayerFactory::m_block_rows(group, job.problem));
  }
  nlohmann::json json{{"schema", "trace"},
                      {"date", fmt::format("{:%Y-%m-%d}", fmt::gmtime(std::time(nullptr)))},
                      {"card", card.name},
                      {"driver", card.driver},
                      {"commit", options.commit.empty() ? commit_of_program() : options.commit},
                      {"command", recorded_command(options.shared)},
                      {"backend", to_string(job.group.backend)},
                      {"version", version()},
                      {"layer", job.layer_name},
                      {"problem", cli::to_json(job.problem)},
                      {"tokens_per_rank", job.tokens_per_rank},
                      {"routing", job.routing_name},
                      {"rel_l2", comparison.all.rel_l2},
                      {"passed", comparison.passed},
                      {"summary", to_json(summary)}};
  if (late) json["late"] = to_json(*late);
  if (!options.summary.empty()) {
    write_new_file(options.summary, [&](std::ostream& stream) { stream << json.dump(1) << '\n'; });
  }
  print(options.shared.json ? json.dump() + '\n'
                            : title + '\n' + to_text(summary) + (late ? '\n' + to_text(*late) : ""));
  return comparison.passed ? kRight : kVerificationFailed;
}

}  // namespace flashmoe::cli
