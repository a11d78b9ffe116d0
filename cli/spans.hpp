// Stretches of a timeline, and sums over them.
#pragma once

#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "actors/rank_trace.hpp"

namespace flashmoe::cli {

using Spans = std::vector<std::pair<std::uint64_t, std::uint64_t>>;  // ns, begin and end

inline double us_of(std::uint64_t ns) { return static_cast<double>(ns) * 1e-3; }

/// Sorted and apart.
Spans united(Spans spans);

/// Of united spans.
std::uint64_t length(const Spans& spans);
std::uint64_t common_length(const Spans& a, const Spans& b);

template <class Wanted>
void add_spans(const ActorTrace& actor, Spans& spans, const Wanted& wanted) {
  for (const TraceRecord& record : actor.records) {
    if (wanted(record)) spans.emplace_back(record.begin_ns, record.end_ns);
  }
}

/// A processor's time, of all its parts: a Hopper block's consumers work at once.
struct ProcessorSpans {
  std::uint64_t begin_ns = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t end_ns = 0;
  Spans busy;      // tasks, with what consumers do with their products
  Spans products;  // up and down tasks

  void add(const ActorTrace& actor);
};

}  // namespace flashmoe::cli
