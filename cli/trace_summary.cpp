#include "trace_summary.hpp"

#include <utility>

#include "spans.hpp"
#include "timeline.hpp"

namespace flashmoe::cli {

namespace {

struct ProcessorTime {
  std::uint64_t resident_ns = 0;
  std::uint64_t busy_ns = 0;
  std::uint64_t product_ns = 0;

  void add(ProcessorSpans spans) {
    if (spans.end_ns > spans.begin_ns) resident_ns += spans.end_ns - spans.begin_ns;
    busy_ns += length(united(std::move(spans.busy)));
    product_ns += length(united(std::move(spans.products)));
  }
};

/// What the actor did, by name, and what it waited for.
void add_times(const ActorTrace& actor, TraceSummary& summary) {
  const std::string role = role_of(actor);
  // The consumers wait for what these wait for.
  const bool counts = actor.part != ProcessorPart::foreman && actor.part != ProcessorPart::loader;
  for (const TraceRecord& record : actor.records) {
    const double us = us_of(record.end_ns - record.begin_ns);
    if (record.kind == TraceRecord::Kind::wait) {
      if (counts) summary.wait_us[static_cast<std::size_t>(cause_of(record.signal))] += us;
    } else {
      summary.busy_us[record.kind == TraceRecord::Kind::task ? role + "." + name_of(record) : role] += us;
    }
  }
}

}  // namespace

std::string_view to_string(WaitCause cause) {
  constexpr std::string_view names[] = {"tokens", "ring", "task", "results", "own_rank"};
  return names[static_cast<int>(cause)];
}

WaitCause cause_of(SignalKind signal) {
  switch (signal) {
    case SignalKind::header:
    case SignalKind::ids:
    case SignalKind::list:
    case SignalKind::arrival:
    case SignalKind::row_lines: return WaitCause::tokens;
    case SignalKind::consumed: return WaitCause::ring;
    case SignalKind::stored:
    case SignalKind::task: return WaitCause::task;
    case SignalKind::result_count:
    case SignalKind::result_lines: return WaitCause::results;
    default: return WaitCause::own_rank;
  }
}

TraceSummary summarise(const std::vector<RankTrace>& ranks) {
  TraceSummary summary;
  const TimelineBounds bounds = bounds_of(ranks);
  summary.wall_us = us_of(bounds.end_ns - bounds.begin_ns);
  summary.num_dropped = num_dropped(ranks);
  std::uint64_t moving_ns = 0;
  std::uint64_t hidden_ns = 0;
  ProcessorTime total;
  std::size_t num_processors = 0;
  for (const RankTrace& rank : ranks) {
    Spans moving;
    Spans computing;
    std::map<int, ProcessorSpans> processors;
    for (const ActorTrace& actor : rank.actors) {
      summary.num_records += actor.records.size();
      add_times(actor, summary);
      if (actor.actor == Actor::processor) {
        processors[actor.index].add(actor);
      } else if (actor.actor == Actor::dispatcher || actor.actor == Actor::combiner) {
        add_spans(actor, moving, [](const TraceRecord& record) { return record.kind == TraceRecord::Kind::work; });
      }
    }
    for (auto& [index, processor] : processors) {
      computing.insert(computing.end(), processor.busy.begin(), processor.busy.end());
      total.add(std::move(processor));
    }
    num_processors += processors.size();
    moving = united(std::move(moving));
    moving_ns += length(moving);
    hidden_ns += common_length(moving, united(std::move(computing)));
  }
  if (moving_ns > 0) summary.overlap_efficiency = static_cast<double>(hidden_ns) / static_cast<double>(moving_ns);
  const std::uint64_t available_ns = num_processors * (bounds.end_ns - bounds.begin_ns);
  if (available_ns > 0) {
    const auto share = [&](std::uint64_t ns) { return static_cast<double>(ns) / static_cast<double>(available_ns); };
    summary.resident_share = share(total.resident_ns);
    summary.busy_share = share(total.busy_ns);
    summary.product_share = share(total.product_ns);
  }
  return summary;
}

}  // namespace flashmoe::cli
