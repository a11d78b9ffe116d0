#include "trace_summary.hpp"

#include <algorithm>
#include <utility>

#include "timeline.hpp"

namespace flashmoe::cli {

namespace {

using Spans = std::vector<std::pair<std::uint64_t, std::uint64_t>>;  // ns, begin and end

double us_of(std::uint64_t ns) { return static_cast<double>(ns) * 1e-3; }

/// Sorted and apart.
Spans united(Spans spans) {
  std::sort(spans.begin(), spans.end());
  Spans result;
  for (const auto& [begin, end] : spans) {
    if (!result.empty() && begin <= result.back().second) {
      result.back().second = std::max(result.back().second, end);
    } else {
      result.emplace_back(begin, end);
    }
  }
  return result;
}

std::uint64_t length(const Spans& spans) {
  std::uint64_t total = 0;
  for (const auto& [begin, end] : spans) total += end - begin;
  return total;
}

/// Of two united sets.
std::uint64_t common_length(const Spans& a, const Spans& b) {
  std::uint64_t total = 0;
  for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const std::uint64_t begin = std::max(a[i].first, b[j].first);
    const std::uint64_t end = std::min(a[i].second, b[j].second);
    if (begin < end) total += end - begin;
    (a[i].second < b[j].second ? i : j)++;
  }
  return total;
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
  std::uint64_t moving_ns = 0;
  std::uint64_t hidden_ns = 0;
  double resident_us = 0;
  double task_us = 0;
  int num_processors = 0;
  for (const RankTrace& rank : ranks) {
    Spans moving;
    Spans computing;
    for (const ActorTrace& actor : rank.actors) {
      summary.num_records += actor.records.size();
      summary.num_dropped += actor.num_dropped;
      const bool mover = actor.actor == Actor::dispatcher || actor.actor == Actor::combiner;
      for (const TraceRecord& record : actor.records) {
        const double us = us_of(record.end_ns - record.begin_ns);
        if (record.kind == TraceRecord::Kind::wait) {
          summary.wait_us[static_cast<std::size_t>(cause_of(record.signal))] += us;
          continue;
        }
        const std::string actor_name(to_string(actor.actor));
        const bool task = record.kind == TraceRecord::Kind::task;
        summary.busy_us[task ? actor_name + "." + name_of(record) : actor_name] += us;
        if (task) {
          task_us += us;
          computing.emplace_back(record.begin_ns, record.end_ns);
        } else if (mover) {
          moving.emplace_back(record.begin_ns, record.end_ns);
        }
      }
      if (actor.actor == Actor::processor) {
        ++num_processors;
        if (!actor.records.empty()) resident_us += us_of(actor.records.back().end_ns - actor.records.front().begin_ns);
      }
    }
    moving = united(std::move(moving));
    moving_ns += length(moving);
    hidden_ns += common_length(moving, united(std::move(computing)));
  }
  if (moving_ns > 0) summary.overlap_efficiency = static_cast<double>(hidden_ns) / static_cast<double>(moving_ns);
  if (num_processors > 0 && summary.wall_us > 0) {
    summary.resident_share = resident_us / (num_processors * summary.wall_us);
    summary.busy_share = task_us / (num_processors * summary.wall_us);
  }
  return summary;
}

}  // namespace flashmoe::cli
