// What one planner does with its chunk of a wave (counted form): count it, then, knowing what all the others counted,
// place its routes into the images. Between the two its caller tells the others and waits for them.
#pragma once

#include <cstdint>

#include "actors/call.hpp"
#include "actors/route_plan.hpp"
#include "actors/signal.hpp"

namespace flashmoe {

template <class Group>
class ChunkPlanner {
 public:
  FLASHMOE_HD ChunkPlanner(const Call& call, std::int64_t wave, int ring_slot, WaveCut cut, int index)
      : call_(call), wave_(wave), ring_slot_(ring_slot), cut_(cut), index_(index), chunk_(cut.chunk(index)) {}

  /// Of small waves some are.
  FLASHMOE_HD bool empty() const { return chunk_.size() == 0; }

  /// First route of the chunk whose id is wrong, or -1.
  FLASHMOE_HD std::int64_t find_wrong_route(const Group& group) const {
    return find_wrong_id(group, geometry(), call_.wave_ids(wave_), chunk_);
  }

  /// False when an id is wrong. The counts may be told to others when true.
  FLASHMOE_HD bool count(const Group& group) const {
    const bool valid = count_chunk(
        group, geometry(), call_.wave_ids(wave_), chunk_, call_.rank,
        {.own = call_.chunk_counts(index_), .set = has_sets() ? call_.set_counts(index_ / kChunkSet) : nullptr},
        [this](std::int64_t token) { return call_.slot_map(token); });
    group.sync();
    return valid;
  }

  /// With all chunks counted: where this one's routes lie in every image. One planner an image writes its head, too.
  FLASHMOE_HD void place(const Group& group) const {
    const Geometry& g = geometry();
    std::uint32_t* entries = call_.chunk_cursors(index_);
    std::uint32_t* cursors = entries + g.num_ranks;
    std::uint32_t* first_slots = call_.chunk_slots(index_);
    FLASHMOE_ROLLED
    for (int destination = 0; destination < g.num_ranks; ++destination) {
      const RouteImage image = call_.own_image(destination, ring_slot_);
      const bool writes_head = destination % cut_.num_chunks == index_;
      const Counted slots = destination == call_.rank ? Counted{} : count_slots(group, destination);
      const std::uint32_t first_slot = group.sum(slots.before);
      const std::uint32_t num_slots = destination == call_.rank ? cut_.wave_tokens : group.sum(slots.all);
      const std::uint32_t total = set_cursors(group, destination, cursors, writes_head ? image.counts() : nullptr);
      if (!group.leader()) continue;
      entries[destination] = total;
      first_slots[destination] = first_slot;
      if (writes_head) finish_image_head(image, num_slots, total);
    }
    group.sync();
    place_routes(
        group, g,
        {.ids = call_.wave_ids(wave_),
         .weights = call_.plan.list_weights ? call_.topk_weights + call_.wave_begin(wave_) * g.top_k : nullptr,
         .tokens = chunk_},
        cursors, [this](int destination) { return call_.own_image(destination, ring_slot_); },
        [entries](int destination) { return entries[destination]; },
        [this, first_slots](std::int32_t token, int destination) {
          return destination == call_.rank ? static_cast<std::uint32_t>(token)
                                           : first_slots[destination] + call_.slot_map(token)[destination];
        });
    group.sync();
  }

  /// Sums of one key over the chunks before this planner's, and over all of them.
  struct Counted {
    std::uint32_t before = 0;
    std::uint32_t all = 0;
  };

  /// With all chunks counted: tokens that go to another rank, for the group to sum up. Its threads take chunks side by side.
  FLASHMOE_HD Counted count_slots(const Group& group, int destination) const {
    constexpr int kBatch = 4;  // loads in flight
    Counted mine;
    FLASHMOE_ROLLED
    for (int base = group.index(); base < cut_.num_chunks; base += kBatch * group.size()) {
      std::uint32_t counts[kBatch];
      FLASHMOE_UNROLL
      for (int i = 0; i < kBatch; ++i) {
        const int chunk = base + i * group.size();
        counts[i] = chunk < cut_.num_chunks ? call_.chunk_counts(chunk)[destination] : 0;
      }
      FLASHMOE_UNROLL
      for (int i = 0; i < kBatch; ++i) {
        mine.all += counts[i];
        if (base + i * group.size() < index_) mine.before += counts[i];
      }
    }
    return mine;
  }

  /// Once all have placed: the sums of one set of chunks, by the planner of that number, for the next wave.
  FLASHMOE_HD void clear_set(const Group& group) const {
    if (!has_sets() || index_ >= num_chunk_sets(cut_.num_chunks)) return;
    FLASHMOE_ROLLED
    for (int key = group.index(); key < num_keys(); key += group.size()) call_.set_counts(index_)[key] = 0;
  }

 private:
  FLASHMOE_HD const Geometry& geometry() const { return call_.geometry(); }
  FLASHMOE_HD int num_keys() const { return geometry().num_ranks + geometry().num_experts(); }
  /// Whether chunks are counted by sets, too.
  FLASHMOE_HD bool has_sets() const { return cut_.num_chunks > kChunkSet; }

  /// Routes to an expert, each thread its own.
  FLASHMOE_HD Counted count_routes(int expert) const {
    constexpr int kMostSets = num_chunk_sets(kMostPlanners);
    const int own_set = index_ / kChunkSet;
    const int first = own_set * kChunkSet;
    const int num_sets = has_sets() ? num_chunk_sets(cut_.num_chunks) : 0;
    const int keys = num_keys();
    const std::uint32_t* chunks_of_key = call_.chunk_counts(first) + geometry().num_ranks + expert;
    const std::uint32_t* sets_of_key = call_.set_counts(0) + geometry().num_ranks + expert;
    std::uint32_t counts[kChunkSet];  // all loads are in flight at once
    std::uint32_t sets[kMostSets];
    FLASHMOE_UNROLL
    for (int i = 0; i < kChunkSet; ++i) counts[i] = first + i < cut_.num_chunks ? chunks_of_key[i * keys] : 0;
    FLASHMOE_UNROLL
    for (int i = 0; i < kMostSets; ++i) sets[i] = i < num_sets ? sets_of_key[i * keys] : 0;
    Counted sums;
    FLASHMOE_UNROLL
    for (int i = 0; i < kChunkSet; ++i) {
      if (num_sets == 0) sums.all += counts[i];
      if (first + i < index_) sums.before += counts[i];
    }
    FLASHMOE_UNROLL
    for (int i = 0; i < kMostSets; ++i) {
      sums.all += sets[i];
      if (i < own_set) sums.before += sets[i];
    }
    return sums;
  }

  /// Sets this planner's first entry of every expert of `destination`; returns the image's entries. `totals`, if not
  /// null, gets the routes to each of its experts.
  FLASHMOE_HD std::uint32_t set_cursors(const Group& group, int destination, std::uint32_t* cursors,
                                        std::uint32_t* totals) const {
    const Geometry& g = geometry();
    std::uint32_t total = 0;
    FLASHMOE_ROLLED
    for (int base = 0; base < g.num_local_experts; base += group.size()) {
      const int local_expert = base + group.index();
      const int expert = destination * g.num_local_experts + local_expert;
      const bool valid = local_expert < g.num_local_experts;
      const Counted routes = valid ? count_routes(expert) : Counted{};
      const Scan scan = group.scan(routes.all);
      if (valid) cursors[expert] = total + scan.before + routes.before;
      if (valid && totals != nullptr) totals[local_expert] = routes.all;
      total += scan.total;
    }
    return total;
  }

  const Call& call_;
  std::int64_t wave_;
  int ring_slot_;
  WaveCut cut_;
  int index_;
  TokenRange chunk_;
};

}  // namespace flashmoe
