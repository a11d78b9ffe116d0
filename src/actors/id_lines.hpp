// Ids on their way: where receivers make a rank's list themselves (Call::listed_from_ids), its dispatchers send its topk_ids,
// two a word, and its routing weights behind them where lists carry any.
#pragma once

#include <cstdint>
#include <cstring>

#include "actors/call.hpp"
#include "actors/route_plan.hpp"

namespace flashmoe {

template <class T>
FLASHMOE_HD std::uint64_t pack_pair(const T* values, std::int64_t first, std::int64_t count) {
  static_assert(sizeof(T) == 4);
  std::uint32_t low = 0;
  std::uint32_t high = 0;
  memcpy(&low, values + first, 4);
  if (first + 1 < count) memcpy(&high, values + first + 1, 4);
  return low | (std::uint64_t{high} << 32);
}

/// One dispatcher's share of the lines to every other rank. `sequence`: of the wave (counted form); `scratch`: room for some
/// lines' words
template <class Group, class Fabric>
FLASHMOE_HD void send_ids(const Group& group, const Fabric& fabric, const Call& call, int dispatcher, std::uint64_t sequence,
                          std::uint64_t* scratch, std::int64_t scratch_lines) {
  const Geometry& g = call.geometry();
  const std::int64_t routes = call.num_tokens * g.top_k;
  const std::int64_t first_weight = id_words(g, call.num_tokens, false);
  const std::int64_t words = id_words(g, call.num_tokens, call.plan.list_weights);
  const TokenRange share = share_of(num_lines(words), call.roster.num_dispatchers, dispatcher);
  FLASHMOE_ROLLED
  for (std::int64_t line = share.begin; line < share.end; line += scratch_lines) {
    const std::int64_t begin = line * Line::kDataWords;
    const std::int64_t last = line + scratch_lines < share.end ? line + scratch_lines : share.end;
    const std::int64_t end = last * Line::kDataWords < words ? last * Line::kDataWords : words;
    FLASHMOE_ROLLED
    for (std::int64_t word = begin + group.index(); word < end; word += group.size()) {
      scratch[word - begin] = word < first_weight ? pack_pair(call.topk_ids, 2 * word, routes)
                                                  : pack_pair(call.topk_weights, 2 * (word - first_weight), routes);
    }
    group.sync();
    FLASHMOE_ROLLED
    for (int offset = 1; offset < g.num_ranks; ++offset) {
      fabric.put_lines(group, call.peer_at(offset),
                       call.id_lines(call.rank, sequence) + static_cast<std::size_t>(line) * sizeof(Line), scratch, end - begin,
                       call.id_tag(sequence));
    }
    group.sync();
  }
}

/// The same, in the rank's own memory.
template <class Group, class Fabric>
FLASHMOE_HD void send_ids(const Group& group, const Fabric& fabric, const Call& call, int dispatcher, std::uint64_t sequence) {
  const std::int64_t lines = num_lines(id_words(call.geometry(), call.num_tokens, call.plan.list_weights));
  const TokenRange share = share_of(lines, call.roster.num_dispatchers, dispatcher);
  send_ids(group, fabric, call, dispatcher, sequence, call.source_ids(call.rank) + share.begin * Line::kDataWords,
           share.size());
}

/// What a source's tokens choose, in this rank's memory: [num_tokens][top_k].
struct SourceRoutes {
  const std::int32_t* ids;
  const float* weights;  ///< null where lists carry none: a rank without tokens of its own may have been given null
};

/// Of the rank itself, or of another whose lines have been read to Call::source_ids().
FLASHMOE_HD inline SourceRoutes source_routes(const Call& call, int source, std::int64_t num_tokens) {
  const bool weights = call.plan.list_weights;
  if (source == call.rank) return {call.topk_ids, weights ? call.topk_weights : nullptr};
  const std::uint64_t* words = call.source_ids(source);
  const std::uint64_t* after_ids = words + id_words(call.geometry(), num_tokens, false);
  return {reinterpret_cast<const std::int32_t*>(words), weights ? reinterpret_cast<const float*>(after_ids) : nullptr};
}

}  // namespace flashmoe
