#include "late_rank.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "spans.hpp"
#include "table.hpp"

namespace flashmoe::cli {

namespace {

std::uint64_t begin_of(const RankTrace& rank) {
  std::uint64_t begin_ns = std::numeric_limits<std::uint64_t>::max();
  for (const ActorTrace& actor : rank.actors) {
    if (!actor.records.empty()) begin_ns = std::min(begin_ns, actor.records.front().begin_ns);
  }
  return begin_ns;
}

/// When the late rank's first tokens had come, as Meanwhile says; `begin_ns` where this subscriber did not wait for them.
std::uint64_t first_tokens(const ActorTrace& subscriber, int late_rank, std::uint64_t begin_ns) {
  const std::vector<TraceRecord>& records = subscriber.records;
  std::uint64_t seen_ns = begin_ns;
  bool listed = false;
  for (std::size_t i = 0; i < records.size(); ++i) {
    if (records[i].kind != TraceRecord::Kind::wait || records[i].peer != late_rank) continue;
    // A CPU's thread sleeps between its steps.
    const std::uint64_t over_ns = i + 1 < records.size() ? records[i + 1].begin_ns : records[i].end_ns;
    switch (records[i].signal) {
      case SignalKind::header: seen_ns = over_ns; break;
      case SignalKind::ids:
      case SignalKind::list:
        if (listed) return seen_ns;  // maybe that of another wave
        listed = true;
        seen_ns = over_ns;
        break;
      case SignalKind::arrival:
      case SignalKind::row_lines: return over_ns;
      default: break;
    }
  }
  return seen_ns;
}

/// Up and down tasks begun before `until_ns`. Of a Hopper block the loader has each once, consumers have its tiles.
void count_tasks(const ActorTrace& actor, std::uint64_t begin_ns, std::uint64_t until_ns, Meanwhile& meanwhile) {
  if (actor.part != ProcessorPart::whole && actor.part != ProcessorPart::loader) return;
  for (const TraceRecord& record : actor.records) {
    if (record.begin_ns >= until_ns) break;
    if (record.kind != TraceRecord::Kind::task || record.task_kind == TaskKind::reduce) continue;
    const bool up = record.task_kind == TaskKind::up;
    ++(up ? meanwhile.up_tasks : meanwhile.down_tasks);
    if (up && record.tile == 0) ++meanwhile.m_blocks;
    meanwhile.last_tile_us = std::max(meanwhile.last_tile_us, us_of(std::min(record.end_ns, until_ns) - begin_ns));
  }
}

Meanwhile meanwhile_of(const RankTrace& rank, int late_rank, std::uint64_t begin_ns) {
  Meanwhile meanwhile;
  std::uint64_t until_ns = begin_ns;
  for (const ActorTrace& actor : rank.actors) {
    if (actor.actor == Actor::subscriber) until_ns = std::max(until_ns, first_tokens(actor, late_rank, begin_ns));
  }
  meanwhile.tokens_us = us_of(until_ns - begin_ns);
  std::map<int, ProcessorSpans> processors;
  for (const ActorTrace& actor : rank.actors) {
    if (actor.actor != Actor::processor) continue;
    processors[actor.index].add(actor);
    count_tasks(actor, begin_ns, until_ns, meanwhile);
  }
  const Spans before{{begin_ns, until_ns}};
  std::uint64_t busy_ns = 0;
  std::uint64_t product_ns = 0;
  for (auto& [index, spans] : processors) {
    busy_ns += common_length(united(std::move(spans.busy)), before);
    product_ns += common_length(united(std::move(spans.products)), before);
  }
  if (const std::uint64_t available_ns = processors.size() * (until_ns - begin_ns); available_ns > 0) {
    meanwhile.busy_share = static_cast<double>(busy_ns) / static_cast<double>(available_ns);
    meanwhile.product_share = static_cast<double>(product_ns) / static_cast<double>(available_ns);
  }
  return meanwhile;
}

}  // namespace

std::int64_t m_blocks_without(const Batch& batch, int rank, int late_rank, int rows, std::int64_t tokens_ahead) {
  const int num_local_experts = batch.problem.num_local_experts();
  std::vector<std::int64_t> counts(static_cast<std::size_t>(num_local_experts));
  for (int source = 0; source < batch.problem.num_ranks; ++source) {
    if (source == late_rank) continue;
    const std::int64_t first = batch.first_token[source];
    const std::int64_t end = first + std::min(batch.num_tokens(source), tokens_ahead);
    for (std::int64_t token = first; token < end; ++token) {
      for (int choice = 0; choice < batch.problem.top_k; ++choice) {
        const int local = batch.expert(token, choice) - rank * num_local_experts;
        if (local >= 0 && local < num_local_experts) ++counts[static_cast<std::size_t>(local)];
      }
    }
  }
  std::int64_t m_blocks = 0;
  for (const std::int64_t count : counts) m_blocks += (count + rows - 1) / rows;
  return m_blocks;
}

LateSummary summarise_late(const std::vector<RankTrace>& ranks, const LateRank& late,
                           const std::vector<std::int64_t>& m_blocks) {
  LateSummary summary{.late = late, .others = {}};
  const std::uint64_t late_ns = begin_of(ranks[static_cast<std::size_t>(late.rank)]);
  for (int rank = 0; rank < static_cast<int>(ranks.size()); ++rank) {
    if (rank == late.rank) continue;
    const auto index = static_cast<std::size_t>(rank);
    const std::uint64_t begin_ns = begin_of(ranks[index]);
    Meanwhile meanwhile = meanwhile_of(ranks[index], late.rank, begin_ns);
    meanwhile.rank = rank;
    meanwhile.late_start_us = late_ns >= begin_ns ? us_of(late_ns - begin_ns) : -us_of(begin_ns - late_ns);
    meanwhile.m_blocks_left = std::max<std::int64_t>(0, m_blocks[index] - meanwhile.m_blocks);
    summary.others.push_back(meanwhile);
  }
  return summary;
}

nlohmann::json to_json(const LateSummary& summary) {
  nlohmann::json others = nlohmann::json::array();
  for (const Meanwhile& other : summary.others) {
    others.push_back({{"rank", other.rank},
                      {"late_start_us", other.late_start_us},
                      {"tokens_us", other.tokens_us},
                      {"last_tile_us", other.last_tile_us},
                      {"busy_share", other.busy_share},
                      {"product_share", other.product_share},
                      {"up_tasks", other.up_tasks},
                      {"down_tasks", other.down_tasks},
                      {"m_blocks", other.m_blocks},
                      {"m_blocks_left", other.m_blocks_left}});
  }
  return {{"rank", summary.late.rank}, {"us", summary.late.us}, {"others", others}};
}

std::string to_text(const LateSummary& summary) {
  Table table({"rank", "began later, us", "its tokens after, us", "in a task", "in a product", "last tile, us",
               "up tasks", "down tasks", "m-blocks", "left"});
  for (const Meanwhile& other : summary.others) {
    table.add({fmt::format("{}", other.rank), fmt::format("{:.1f}", other.late_start_us),
               fmt::format("{:.1f}", other.tokens_us), fmt::format("{:.1f} %", 100 * other.busy_share),
               fmt::format("{:.1f} %", 100 * other.product_share), fmt::format("{:.1f}", other.last_tile_us),
               fmt::format("{}", other.up_tasks), fmt::format("{}", other.down_tasks),
               fmt::format("{}", other.m_blocks), fmt::format("{}", other.m_blocks_left)});
  }
  return fmt::format(
      "rank {} was held back {} us; what the others' processors did from their begin until its first tokens came, and "
      "the m-blocks of other rows that they had not begun then (left, at least)\n{}",
      summary.late.rank, summary.late.us, table.text());
}

}  // namespace flashmoe::cli
