// The timelines of all ranks' actors in one call, as files that show them.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#include "actors/rank_trace.hpp"

namespace flashmoe::cli {

/// Begin of the first span and end of the last one over all ranks, ns of the trace's clock; both 0 without a span.
struct TimelineBounds {
  std::uint64_t begin_ns = 0;
  std::uint64_t end_ns = 0;
};
TimelineBounds bounds_of(const std::vector<RankTrace>& ranks);

/// "up", "down", "reduce", "work", or "wait: " and the signal.
std::string name_of(const TraceRecord& record);

/// "dispatcher"; of a part of a processor: "foreman", "loader", "consumer".
std::string role_of(const ActorTrace& actor);

/// "processor 1"; on a GPU "SM 7 dispatcher 5", "SM 7 consumer 6.1".
std::string name_of(const ActorTrace& actor);

/// Spans of all actors that did not fit: above 0 the timelines are of the beginning of the call alone.
std::uint64_t num_dropped(const std::vector<RankTrace>& ranks);

/// Chrome's trace event format: a process a rank, a thread an actor, a complete event a span, us from the first span;
/// "dropped_spans" in "otherData".
void write_chrome(const std::vector<RankTrace>& ranks, std::ostream& stream);

/// A picture that needs nothing else: a row an actor, under its rank. Spans too narrow to see are drawn as one,
/// actors that only waited not at all. Says how many spans did not fit, and marks the rows that go on without them.
void write_svg(const std::vector<RankTrace>& ranks, const std::string& title, std::ostream& stream);

}  // namespace flashmoe::cli
