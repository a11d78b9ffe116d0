#include "spans.hpp"

#include <algorithm>

namespace flashmoe::cli {

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

void ProcessorSpans::add(const ActorTrace& actor) {
  if (actor.records.empty()) return;
  begin_ns = std::min(begin_ns, actor.records.front().begin_ns);
  end_ns = std::max(end_ns, actor.records.back().end_ns);
  if (actor.part == ProcessorPart::foreman || actor.part == ProcessorPart::loader) return;
  const bool consumer = actor.part == ProcessorPart::consumer;
  add_spans(actor, busy, [consumer](const TraceRecord& record) {
    return record.kind == TraceRecord::Kind::task || (consumer && record.kind == TraceRecord::Kind::work);
  });
  add_spans(actor, products, [](const TraceRecord& record) {
    return record.kind == TraceRecord::Kind::task && record.task_kind != TaskKind::reduce;
  });
}

}  // namespace flashmoe::cli
