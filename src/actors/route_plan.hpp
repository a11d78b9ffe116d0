// From topk_ids to slots and route lists: which tokens of a wave go to which rank, in which slot, and what each
// local expert of the destination gathers. Deterministic: slots in token order, routes in (token, choice) order.
// Used by the sender of the counted form (in chunks, one per dispatcher), and by the receiver where ids are sent.
#pragma once

#include <cstdint>

#include "actors/call.hpp"
#include "actors/group.hpp"
#include "actors/signal.hpp"
#include "actors/step.hpp"

namespace flashmoe {

/// Tokens [begin, end) of a wave.
struct TokenRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  FLASHMOE_HD std::int64_t size() const { return end - begin; }
};

/// How a wave is cut for its planners, one chunk each: all of `chunk_tokens` but the last of the `num_chunks` that are not
/// empty.
struct WaveCut {
  std::uint32_t wave_tokens = 0;
  std::uint32_t chunk_tokens = kPlanningTokens;
  int num_chunks = 0;

  FLASHMOE_HD TokenRange chunk(int planner) const {
    const std::uint32_t begin = static_cast<std::uint32_t>(planner) * chunk_tokens;
    const std::uint32_t end = begin + chunk_tokens;
    return {begin < wave_tokens ? begin : wave_tokens, end < wave_tokens ? end : wave_tokens};
  }
  FLASHMOE_HD int chunk_of(std::uint32_t token) const { return static_cast<int>(token / chunk_tokens); }
};

FLASHMOE_HD inline WaveCut cut_wave(std::int64_t wave_tokens, int num_planners) {
  const auto tokens = static_cast<std::uint32_t>(wave_tokens);
  const auto planners = static_cast<std::uint32_t>(num_planners);
  const std::uint32_t pieces = (tokens + kPlanningTokens - 1) / kPlanningTokens;
  const std::uint32_t each = pieces > planners ? (pieces + planners - 1) / planners : 1;
  return {tokens, each * kPlanningTokens, static_cast<int>((pieces + each - 1) / each)};
}

/// The share of `count` items, less than 2^32, that one of `num_parts` workers handles, in order and as even as can be.
FLASHMOE_HD inline TokenRange share_of(std::int64_t count, int num_parts, int part) {
  const std::uint32_t each = static_cast<std::uint32_t>(count) / static_cast<std::uint32_t>(num_parts);
  const std::int64_t longer = count - std::int64_t{each} * num_parts;  // shares of one item more: the first ones
  const auto begin_of = [&](int at) { return std::int64_t{each} * at + (at < longer ? at : longer); };
  return {begin_of(part), begin_of(part + 1)};
}

/// Some of the lines that `num_words` words make.
struct LineShare {
  const std::uint64_t* words;
  std::int64_t num_words;
  std::uint64_t tag;
  TokenRange lines;
};

/// Stores them in `peer`'s heap, where all of them begin at `offset`.
template <class Group, class Fabric>
FLASHMOE_HD void put_share(const Group& group, const Fabric& fabric, int peer, std::size_t offset, const LineShare& share) {
  const std::int64_t first = share.lines.begin * Line::kDataWords;
  const std::int64_t end =
      share.lines.end * Line::kDataWords < share.num_words ? share.lines.end * Line::kDataWords : share.num_words;
  if (first >= end) return;
  fabric.put_lines(group, peer, offset + static_cast<std::size_t>(share.lines.begin) * sizeof(Line), share.words + first,
                   end - first, share.tag);
}

/// Rank of a route's expert, or -1 where the route is masked.
FLASHMOE_HD inline int destination_of(const Geometry& g, std::int32_t expert) {
  return expert < 0 ? -1 : expert / g.num_local_experts;
}

/// Whether it is that of a rank.
FLASHMOE_HD inline bool is_at(const Geometry& g, std::int32_t expert, int destination) {
  const auto first = static_cast<std::uint32_t>(destination * g.num_local_experts);
  return static_cast<std::uint32_t>(expert) - first < static_cast<std::uint32_t>(g.num_local_experts);
}

/// Ids that a thread has under way at once: walks over routes wait for memory once a batch.
inline constexpr int kIdsAhead = 8;

/// Routes of a token to `destination`.
FLASHMOE_HD inline std::uint32_t routes_to(const Geometry& g, const std::int32_t* token_ids, int destination) {
  std::uint32_t routes = 0;
  FLASHMOE_ROLLED
  for (int base = 0; base < g.top_k; base += kIdsAhead) {
    FLASHMOE_UNROLL
    for (int i = 0; i < kIdsAhead; ++i) {
      const std::int32_t id = base + i < g.top_k ? token_ids[base + i] : -1;
      routes += is_at(g, id, destination) ? 1u : 0u;
    }
  }
  return routes;
}

/// Whether any of a token's routes goes to `destination`.
FLASHMOE_HD inline bool goes_to(const Geometry& g, const std::int32_t* token_ids, int destination) {
  return routes_to(g, token_ids, destination) > 0;
}

/// The first `num_tokens` tokens: how many of them go to `destination`.
template <class Group>
FLASHMOE_HD std::uint32_t count_tokens_to(const Group& group, const Geometry& g, const std::int32_t* ids,
                                          std::int64_t num_tokens, int destination) {
  std::uint32_t tokens = 0;
  FLASHMOE_ROLLED
  for (std::int64_t token = group.index(); token < num_tokens; token += group.size()) {
    tokens += goes_to(g, ids + token * g.top_k, destination) ? 1u : 0u;
  }
  return group.sum(tokens);
}

/// Adds to the result targets of a wave the cells that every rank will return for each token block of `tokens`.
template <class Group>
FLASHMOE_HD void raise_result_targets(const Group& group, const Call& call, std::int64_t wave, int ring_slot,
                                      TokenRange tokens) {
  const Geometry& g = call.geometry();
  const std::int32_t* ids = call.wave_ids(wave);
  const auto tokens_end = static_cast<std::int32_t>(tokens.end);
  std::int32_t end = 0;
  FLASHMOE_ROLLED
  for (auto begin = static_cast<std::int32_t>(tokens.begin); begin < tokens_end; begin = end) {
    const std::int32_t block = begin / g.token_block;
    std::uint64_t* targets = call.result_targets(ring_slot, block);
    end = (block + 1) * g.token_block < tokens_end ? (block + 1) * g.token_block : tokens_end;
    FLASHMOE_ROLLED
    for (int peer = 0; peer < g.num_ranks; ++peer) {
      std::uint32_t cells = 0;
      FLASHMOE_ROLLED
      for (std::int64_t token = begin + group.index(); token < end; token += group.size()) {
        const std::uint32_t routes = routes_to(g, ids + token * g.top_k, peer);
        cells += call.pre_reduced() ? (routes > 0 ? 1u : 0u) : routes;
      }
      const std::uint32_t total = group.sum(cells);
      if (group.leader() && total > 0) tally(&targets[peer], std::uint64_t{total});  // dispatchers may share the block
    }
  }
}

/// visit(route, id) for the flat routes of `tokens`, in order, a group's width at a time. All threads of the group
/// visit together; id is -1 for those past the end.
template <class Group, class Visit>
FLASHMOE_HD void each_route(const Group& group, const Geometry& g, const std::int32_t* ids, TokenRange tokens,
                            const Visit& visit) {
  const auto end = static_cast<std::int32_t>(tokens.end) * g.top_k;
  FLASHMOE_ROLLED
  for (std::int32_t base = static_cast<std::int32_t>(tokens.begin) * g.top_k; base < end;
       base += kIdsAhead * group.size()) {
    std::int32_t ahead[kIdsAhead];
    FLASHMOE_UNROLL
    for (int i = 0; i < kIdsAhead; ++i) {
      const std::int32_t route = base + i * group.size() + group.index();
      ahead[i] = route < end ? ids[route] : -1;
    }
    FLASHMOE_ROLLED
    for (int step = 0; step < kIdsAhead && base + step * group.size() < end; ++step) {
      visit(base + step * group.size() + group.index(), ahead[0]);
      FLASHMOE_UNROLL
      for (int i = 1; i < kIdsAhead; ++i) ahead[i - 1] = ahead[i];
    }
  }
}

/// First flat route index in `tokens` whose id is outside -1..num_experts-1, or -1.
template <class Group>
FLASHMOE_HD std::int64_t find_wrong_id(const Group& group, const Geometry& g, const std::int32_t* ids,
                                       TokenRange tokens) {
  const auto num_experts = static_cast<std::uint32_t>(g.num_experts());
  bool none = true;  // each thread looks at all its ids before the group confers
  each_route(group, g, ids, tokens, [&](std::int32_t, std::int32_t id) {
    none &= static_cast<std::uint32_t>(id) + 1u <= num_experts;
  });
  if (group.all(none)) return -1;
  FLASHMOE_ROLLED
  for (std::int64_t base = tokens.begin * g.top_k; base < tokens.end * g.top_k; base += group.size()) {
    const std::int64_t route = base + group.index();
    const bool wrong = route < tokens.end * g.top_k && (ids[route] < -1 || ids[route] >= g.num_experts());
    if (group.any(wrong)) {
      const Scan scan = group.number(wrong);
      return group.first(wrong && scan.before == 0, route);
    }
  }
  return -1;
}

/// Why a dispatcher fails: route `route` of the call.
FLASHMOE_HD inline Wait wrong_id(const Call& call, std::int64_t route) {
  return {SignalKind::wrong_id, call.rank, static_cast<std::uint64_t>(route),
          static_cast<std::uint64_t>(static_cast<std::int64_t>(call.topk_ids[route]))};
}

/// Adds the routes of `tokens` to expert first_expert + e to counts[e], for e < num_experts. The counts are whole once the
/// group has synced.
template <class Group>
FLASHMOE_HD void count_experts(const Group& group, const Geometry& g, const std::int32_t* ids, TokenRange tokens,
                               int first_expert, int num_experts, std::uint32_t* counts) {
  each_route(group, g, ids, tokens, [&](std::int32_t, std::int32_t id) {
    if (id >= first_expert && id - first_expert < num_experts) tally(&counts[id - first_expert], 1u);
  });
}

/// Where a chunk's counts go: [num_ranks] tokens, then [num_experts] routes.
struct ChunkCounts {
  std::uint32_t* own = nullptr;
  std::uint32_t* set = nullptr;  ///< added to, too, if not null: several chunks' sums
};

/// Counts of a chunk: tokens that go to each rank, routes to each expert; and the slot of every token on every rank,
/// counted from the chunk's first (only where the token goes there). Of `own_rank`, whose slots are its tokens, all tokens
/// count and no slots are noted; -1: of no rank. Returns false, and no counts to be used, when an id is wrong.
///   ids [.. ][top_k] of the wave; slot_map(token) [num_ranks]
template <class Group, class SlotMap>
FLASHMOE_HD bool count_chunk(const Group& group, const Geometry& g, const std::int32_t* ids, TokenRange tokens,
                             int own_rank, ChunkCounts counts, const SlotMap& slot_map) {
  const auto num_experts = static_cast<std::uint32_t>(g.num_experts());
  bool valid = true;
  std::uint32_t* experts = counts.own + g.num_ranks;
  FLASHMOE_ROLLED
  for (int expert = group.index(); expert < g.num_experts(); expert += group.size()) experts[expert] = 0;
  group.sync();
  each_route(group, g, ids, tokens, [&](std::int32_t, std::int32_t id) {
    const bool counted = static_cast<std::uint32_t>(id) < num_experts;
    valid &= counted || id == -1;
    if (!counted) return;
    tally(&experts[id], 1u);
    if (counts.set != nullptr) tally(&counts.set[g.num_ranks + id], 1u);  // not from the counts: they would be waited for
  });
  FLASHMOE_ROLLED
  for (int destination = 0; destination < g.num_ranks; ++destination) {
    std::uint32_t slots = destination == own_rank ? static_cast<std::uint32_t>(tokens.size()) : 0;
    const std::int64_t begin = destination == own_rank ? tokens.end : tokens.begin;
    FLASHMOE_ROLLED
    for (std::int64_t base = begin; base < tokens.end; base += group.size()) {
      const std::int64_t token = base + group.index();
      const bool goes = token < tokens.end && goes_to(g, ids + token * g.top_k, destination);
      const Scan scan = group.number(goes);
      if (goes) slot_map(token)[destination] = slots + scan.before;
      slots += scan.total;
    }
    if (group.leader()) {
      counts.own[destination] = slots;
      if (counts.set != nullptr) tally(&counts.set[destination], slots);
    }
  }
  group.sync();
  return group.all(valid);
}

/// Writes an image's header, when the counts of its experts are there. One thread.
FLASHMOE_HD inline void finish_image_head(const RouteImage& image, std::uint32_t num_slots, std::uint32_t num_entries) {
  image.set_header(num_slots, num_entries);
  if (image.num_local_experts % 2 == 1) image.counts()[image.num_local_experts] = 0;  // the odd half of the last word
}

/// Writes an image's header and counts, and returns the number of entries.
///   routes [num_local_experts]: routes to each local expert; replaced by their exclusive sums, its first entries
template <class Group>
FLASHMOE_HD std::uint32_t write_image_head(const Group& group, const RouteImage& image, std::uint32_t num_slots,
                                           std::uint32_t* routes) {
  std::uint32_t total = 0;
  FLASHMOE_ROLLED
  for (int base = 0; base < image.num_local_experts; base += group.size()) {
    const int expert = base + group.index();
    const std::uint32_t count = expert < image.num_local_experts ? routes[expert] : 0;
    const Scan scan = group.scan(count);
    if (expert < image.num_local_experts) {
      image.counts()[expert] = count;
      routes[expert] = total + scan.before;
    }
    total += scan.total;
  }
  if (group.leader()) finish_image_head(image, num_slots, total);
  group.sync();
  return total;
}

/// The routes one worker places.
struct Placement {
  const std::int32_t* ids = nullptr;  // [..][top_k] of the wave
  const float* weights = nullptr;     // [..][top_k], or null where lists carry none
  TokenRange tokens;
  int only_destination = -1;  ///< -1: all ranks
  int first_cursor = 0;       ///< expert of cursors[0]
};

/// Writes routes into their destinations' images.
///   cursors[expert - first_cursor]: the next free entry of the expert in its destination's image, advanced
///   image_of(d), entries_of(d): destination d's image, and its number of entries (weights lie behind them)
///   slot_of(token, d): the token's slot there
template <class Group, class ImageOf, class EntriesOf, class SlotOf>
FLASHMOE_HD void place_routes(const Group& group, const Geometry& g, const Placement& placement,
                              std::uint32_t* cursors, const ImageOf& image_of, const EntriesOf& entries_of,
                              const SlotOf& slot_of) {
  each_route(group, g, placement.ids, placement.tokens, [&](std::int32_t route, std::int32_t id) {
    const int destination = destination_of(g, id);
    const bool mine = destination >= 0 && (placement.only_destination < 0 || destination == placement.only_destination);
    const Match match = group.match(mine ? id : -1);
    std::uint32_t position = 0;
    if (mine) {
      const RouteImage image = image_of(destination);
      position = cursors[id - placement.first_cursor] + static_cast<std::uint32_t>(match.index);
      image.set_entry(position, {slot_of(route / g.top_k, destination), static_cast<std::uint32_t>(route)});
      if (placement.weights != nullptr) image.weights(entries_of(destination))[position] = placement.weights[route];
    }
    group.sync();
    if (mine && match.index == 0) {
      cursors[id - placement.first_cursor] = position + static_cast<std::uint32_t>(match.count);
    }
    group.sync();
  });
}

}  // namespace flashmoe
