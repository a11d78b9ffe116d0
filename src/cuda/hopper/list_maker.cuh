// Route lists made from ids (Call::listed_from_ids) by the consumers of a subscriber's block, which have no task yet, with counts
// in shared memory. What comes out is what a subscriber makes of them step by step (Subscriber::build_image, open_wave), in a
// fraction of the time. Then they tell when the lists' rows have landed.
#pragma once

#include <cstdint>

#include "actors/call.hpp"
#include "actors/id_lines.hpp"
#include "actors/landed_rows.hpp"
#include "actors/route_plan.hpp"
#include "actors/signal.hpp"
#include "cuda/groups.cuh"
#include "cuda/hopper/block.cuh"

namespace flashmoe::cuda_backend::hopper {

/// Tells that all rows of a source whose list is made have landed (counted form), as Subscriber::watch_rows() does, but sooner.
/// Where the subscriber has told it before, it is told once more, or never: both tell of all rows or none, so the cursors are
/// the same. False while rows are missing. A warp tells of the experts of its threads.
__device__ inline bool try_tell_landed(const Call& call, int source) {
  const WarpGroup warp;
  const int ring_slot = call.ring_slot(call.epoch_state().wave_sequence[source]);
  const int slot = call.wave_slot(source, ring_slot);
  const auto block_slots = static_cast<std::uint32_t>(call.geometry().slot_block);
  const std::uint32_t num_slots = call.image(slot).num_slots();
  bool landed = true;
#pragma unroll 1
  for (std::uint32_t base = 0; base < num_slots; base += block_slots * static_cast<std::uint32_t>(warp.size())) {
    const std::uint32_t begin = base + block_slots * static_cast<std::uint32_t>(warp.index());
    if (begin >= num_slots) break;
    const std::uint32_t rows = num_slots - begin < block_slots ? num_slots - begin : block_slots;
    landed = landed && arrivals_of(call, source, slot, ring_slot, begin / block_slots, rows, num_slots).complete();
  }
  if (!warp.all(landed)) return false;
  warp.sync();
  for (int expert = fresh_thread_index() % kConsumerThreads; expert < call.geometry().num_local_experts;
       expert += kConsumerThreads) {
    const std::uint32_t routes = call.expert_offsets(slot)[expert + 1] - call.expert_offsets(slot)[expert];
    publish(&call.landed(slot)[expert], call.wave_base(slot)[expert] + routes);
  }
  return true;
}

/// The same of all sources at these positions of the block's subscriber, until the rows of the block's first task are there.
/// A warp.
__device__ inline void tell_landed(const Call& call, BlockMemory& block, std::uint32_t positions) {
  while (positions != 0 && !WarpGroup::any(block.stored[0].test(0))) {
#pragma unroll 1
    for (std::uint32_t rest = positions; rest != 0; rest &= rest - 1) {
      const int position = __ffs(static_cast<int>(rest)) - 1;
      const int source = call.peer_at(static_cast<int>(blockIdx.x) + position * call.roster.num_subscribers);
      if (try_tell_landed(call, source)) positions &= ~(1u << position);
    }
    __nanosleep(kLookPauseNs);
  }
}

/// Consumer warp w has the w-th part of the tokens. It counts its routes to every expert; sums over experts and parts turn the
/// counts into places in the list, from where it fills them in turn.
class ListMaker {
 public:
  /// `warp`: of the consumer warps.
  __device__ ListMaker(const Call& call, BlockMemory& block, int warp)
      : call_(call), block_(block), warp_(warp), thread_(warp * 32 + static_cast<int>(threadIdx.x % 32)),
        num_experts_(call.geometry().num_local_experts) {}

  /// All consumers of a subscriber's block: makes the lists of its sources as their ids come, until they are made or the block's
  /// first task is there. The rank's own ids are there.
  __device__ void serve() {
    const int first_source = static_cast<int>(blockIdx.x);
    const int step = call_.roster.num_subscribers;
    const int num_sources = min((call_.geometry().num_ranks - first_source + step - 1) / step, ListDesk::kMostSources);
    std::uint32_t open = (1u << num_sources) - 1;  // positions of sources whose lists are not made
    if (first_source == 0 && !call_.listed_at_once(call_.num_tokens)) open &= ~1u;
    if (call_.pre_reduced() || call_.geometry().listed_tokens == 0) open = 0;
    if (call_.lined()) open &= first_source == 0 ? 1u : 0u;  // see Subscriber::has_help()
    std::uint32_t made = 0;  // of other ranks' sources
    do {
      const std::uint32_t before = open;
#pragma unroll 1
      for (std::uint32_t rest = open; rest != 0; rest &= rest - 1) {
        const int position = __ffs(static_cast<int>(rest)) - 1;
        const int source = call_.peer_at(first_source + position * step);
        const std::int64_t num_tokens =
            source == call_.rank ? call_.num_tokens : block_.desk.num_tokens(WarpGroup{}, position);
        if (!all_consumers(source == call_.rank || (num_tokens > 0 && load_ids(source, num_tokens)))) continue;
        make(source, position, static_cast<int>(num_tokens));
        open &= ~(1u << position);
        if (source != call_.rank) made |= 1u << position;
      }
      if (open == before) __nanosleep(kLookPauseNs);
    } while (open != 0 && !any_consumer(block_.stored[0].test(0)));
    if (thread_ == 0) block_.desk.leave();
    fence_async_shared();
    block_.listed.arrive();
    tell_landed(call_, block_, made);
  }

 private:
  static constexpr int kThreads = kConsumerThreads;

  /// This warp's share of a source's ids out of their lines. False while any is missing.
  __device__ bool load_ids(int source, std::int64_t num_tokens) const {
    const std::uint64_t sequence = call_.epoch_state().wave_sequence[source];
    const std::int64_t words = id_words(call_.geometry(), num_tokens, call_.plan.list_weights);
    const TokenRange share = share_of(num_lines(words), kConsumerWarps, warp_);
    const std::int64_t begin = share.begin * Line::kDataWords;
    const std::int64_t end = share.end * Line::kDataWords < words ? share.end * Line::kDataWords : words;
    const auto* lines = call_.heap_at<const Line>(call_.id_lines(source, sequence)) + share.begin;
    return begin >= end || load_lines(WarpGroup{}, lines, end - begin, call_.id_tag(sequence),
                                      call_.source_ids(source) + begin) == end - begin;
  }

  /// The list of a source whose ids are here.
  __device__ void make(int source, int position, int num_tokens) {
    own_ = source == call_.rank;
    const TokenRange part = share_of(num_tokens, kConsumerWarps, warp_);
    begin_ = static_cast<int>(part.begin);
    end_ = static_cast<int>(part.end);
    routes_ = source_routes(call_, source, num_tokens);
    slot_ = call_.wave_slot(source, call_.lined() ? 0 : call_.ring_slot(call_.epoch_state().wave_sequence[source]));
    const RouteImage image = call_.image(slot_);
#pragma unroll 1
    for (int i = thread_; i < kConsumerWarps * num_experts_; i += kThreads) cells(0)[i] = {0, 0};
    await_consumers();
    count_part();
    await_consumers();
    std::uint32_t num_slots = own_ ? static_cast<std::uint32_t>(num_tokens) : 0;
    std::uint32_t first_slot = 0;  // of this part
#pragma unroll 1
    for (int other = 0; other < kConsumerWarps && !own_; ++other) {
      if (other == warp_) first_slot = num_slots;
      num_slots += slots()[other];
    }
    const std::uint32_t num_entries = find_places(image, num_slots);
    await_consumers();
    place_routes(first_slot);
    await_consumers();
    store(image, num_entries);
    await_consumers();  // the list is complete
    if (own_) {
      for (int expert = thread_; expert < num_experts_; expert += kThreads) {
        const std::uint32_t landed = call_.wave_base(slot_)[expert] + call_.expert_offsets(slot_)[expert + 1] -
                                     call_.expert_offsets(slot_)[expert];
        publish(&call_.landed(slot_)[expert], landed);
      }
      await_consumers();
    }
    if (thread_ == 0) block_.desk.tell_made(position);
    if (thread_ % 128 == 0) block_.logs[kFirstConsumerRow + warp_ / 4].worked();
  }

  /// Of an expert, for one warp: how many routes its part has; then the place of the next one, and which of 32 tokens have it.
  struct Cell {
    std::uint32_t routes;
    std::uint32_t tokens;
  };
  // The stages, which nobody needs yet: entries, sums of warps, slots of parts, and cells, [kConsumerWarps][num_experts]; see
  // listed_routes(). Entries scattered into memory would take longer.
  __device__ std::uint64_t* entries() const { return reinterpret_cast<std::uint64_t*>(block_.stages[0]); }
  __device__ std::uint32_t* sums() const { return reinterpret_cast<std::uint32_t*>(entries() + kMostListedRoutes); }
  __device__ std::uint32_t* slots() const { return sums() + kConsumerWarps; }
  __device__ Cell* cells(int warp) const { return reinterpret_cast<Cell*>(slots() + kConsumerWarps) + warp * num_experts_; }
  /// Slots of tokens, counted from their part's first; of tokens that do not come here undefined.
  __device__ std::uint32_t* token_slots() const { return call_.token_slots(static_cast<int>(blockIdx.x)); }

  /// Local experts of up to kBatch choices of a token, a token a thread; other values where they are another rank's.
  static constexpr int kBatch = 8;
  struct Batch {
    std::uint32_t experts[kBatch];
  };
  __device__ Batch load_batch(int token, int first_choice) const {
    const int top_k = call_.geometry().top_k;
    const int count = token < end_ ? top_k - first_choice : 0;
    const std::int32_t* ids = routes_.ids + token * top_k + first_choice;
    const auto first_expert = static_cast<std::uint32_t>(call_.rank * num_experts_);
    Batch batch;
#pragma unroll
    for (int i = 0; i < kBatch; ++i) batch.experts[i] = static_cast<std::uint32_t>(i < count ? ids[i] : -1) - first_expert;
    return batch;
  }
  __device__ bool is_here(std::uint32_t expert) const { return expert < static_cast<std::uint32_t>(num_experts_); }
  /// visit(batch, first choice) for all choices of `token`, whose first batch is known.
  template <class Visit>
  __device__ __forceinline__ void each_batch(int token, Batch batch, const Visit& visit) const {
    int choice = 0;
#pragma unroll 1
    while (true) {
      visit(batch, choice);
      choice += kBatch;
      if (choice >= call_.geometry().top_k) return;
      batch = load_batch(token, choice);
    }
  }
  /// visit(token, first batch) for 32 tokens of this warp's part at a time, while the next ones' ids are under way.
  template <class Visit>
  __device__ __forceinline__ void each_token(const Visit& visit) const {
    Batch batch = load_batch(begin_ + WarpGroup::index(), 0);
#pragma unroll 1
    for (int base = begin_; base < end_; base += 32) {
      const int token = base + WarpGroup::index();
      const Batch next = load_batch(token + 32, 0);
      visit(token, batch);
      batch = next;
    }
  }

  /// Routes to every expert, and the slots of this part.
  __device__ void count_part() const {
    Cell* const cells = this->cells(warp_);
    std::uint32_t num_slots = 0;
    each_token([&](int token, const Batch& first) __attribute__((always_inline)) {
      bool comes = false;
      each_batch(token, first, [&](const Batch& batch, int) __attribute__((always_inline)) {
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
          if (is_here(batch.experts[i])) atomicAdd(&cells[batch.experts[i]].routes, 1u);
          comes |= is_here(batch.experts[i]);
        }
      });
      if (own_) return;
      const Scan scan = WarpGroup::number(comes);
      if (comes) token_slots()[token] = num_slots + scan.before;
      num_slots += scan.total;
    });
    if (WarpGroup::leader()) slots()[warp_] = num_slots;
  }

  /// Opens the wave, but for rows that have landed. cells(w)[e].routes becomes the place of part w's first route to expert e.
  __device__ std::uint32_t find_places(const RouteImage& image, std::uint32_t num_slots) const {
    const WarpGroup warp;
    std::uint32_t total = 0;
#pragma unroll 1
    for (int base = 0; base < num_experts_; base += kThreads) {
      const int expert = base + thread_;
      const bool exists = expert < num_experts_;
      std::uint32_t routes = 0;
#pragma unroll 1
      for (int part = 0; exists && part < kConsumerWarps; ++part) routes += cells(part)[expert].routes;
      const Scan scan = warp.scan(routes);
      if (warp.leader()) sums()[warp_] = scan.total;
      await_consumers();
      std::uint32_t place = total + scan.before;
#pragma unroll 1
      for (int other = 0; other < kConsumerWarps; ++other) {
        const std::uint32_t sum = sums()[other];
        if (other < warp_) place += sum;
        total += sum;
      }
      if (exists) {
        image.counts()[expert] = routes;
        call_.expert_offsets(slot_)[expert] = place;
        call_.wave_base(slot_)[expert] = call_.landed(slot_)[expert];
      }
#pragma unroll 1
      for (int part = 0; exists && part < kConsumerWarps; ++part) {
        const std::uint32_t first = place;
        place += cells(part)[expert].routes;
        cells(part)[expert].routes = first;
      }
      await_consumers();  // before the sums are written again
    }
    if (thread_ == 0) {
      finish_image_head(image, num_slots, total);
      call_.expert_offsets(slot_)[num_experts_] = total;
      call_.wave(slot_) = {num_slots, total, 0, 0, 0};
    }
    return total;
  }

  /// Of 32 tokens at a time it is noted which have each expert: a route's place is its expert's next, and as many further as lower
  /// threads' tokens have it. (Finding equal experts among 32 routes would take several times as long.) Tokens of which one has
  /// an expert twice are dealt with one after the other.
  __device__ void place_routes(std::uint32_t first_slot) const {
    Cell* const cells = this->cells(warp_);
    const std::uint32_t mine = 1u << WarpGroup::index();
    each_token([&](int token, const Batch& first) __attribute__((always_inline)) {
      std::uint32_t seen = 0;
      each_batch(token, first, [&](const Batch& batch, int) __attribute__((always_inline)) {
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
          if (is_here(batch.experts[i])) seen |= atomicOr(&cells[batch.experts[i]].tokens, mine);
        }
      });
      std::uint32_t slot = static_cast<std::uint32_t>(token);
      if (!own_ && token < end_) slot = first_slot + token_slots()[token];
      const bool in_turn = WarpGroup::any((seen & mine) != 0);
      WarpGroup::sync();
      if (in_turn) {
        place_in_turn(token, first, slot);
      } else {
        each_batch(token, first, [&](const Batch& batch, int choice) __attribute__((always_inline)) {
          const std::uint32_t return_row = return_row_of(token, choice);
#pragma unroll
          for (int i = 0; i < kBatch; ++i) {
            if (!is_here(batch.experts[i])) continue;
            const Cell cell = cells[batch.experts[i]];
            entries()[cell.routes + static_cast<std::uint32_t>(__popc(cell.tokens & (mine - 1)))] =
                RouteImage::word_of({slot, return_row + static_cast<std::uint32_t>(i)});
          }
        });
      }
      WarpGroup::sync();
#pragma unroll 1
      for (int expert = WarpGroup::index(); expert < num_experts_; expert += WarpGroup::size()) {
        const Cell cell = cells[expert];
        cells[expert] = {cell.routes + (in_turn ? 0 : static_cast<std::uint32_t>(__popc(cell.tokens))), 0};
      }
      WarpGroup::sync();
    });
  }

  __device__ std::uint32_t return_row_of(int token, int choice) const {
    return static_cast<std::uint32_t>(token * call_.geometry().top_k + choice);
  }

  __device__ void place_in_turn(int token, const Batch& first, std::uint32_t slot) const {
    Cell* const cells = this->cells(warp_);
#pragma unroll 1
    for (int lane = 0; lane < WarpGroup::size(); ++lane) {
      if (lane == WarpGroup::index()) {
        each_batch(token, first, [&](const Batch& batch, int choice) {
#pragma unroll
          for (int i = 0; i < kBatch; ++i) {
            if (!is_here(batch.experts[i])) continue;
            entries()[cells[batch.experts[i]].routes++] = RouteImage::word_of({slot, return_row_of(token, choice + i)});
          }
        });
      }
      WarpGroup::sync();
    }
  }

  __device__ void store(const RouteImage& image, std::uint32_t num_entries) const {
#pragma unroll 4
    for (auto i = static_cast<std::uint32_t>(thread_); i < num_entries; i += kThreads) image.entries()[i] = entries()[i];
    if (routes_.weights == nullptr) return;
#pragma unroll 1
    for (auto i = static_cast<std::uint32_t>(thread_); i < num_entries; i += kThreads) {
      image.weights(num_entries)[i] = routes_.weights[entries()[i] >> 32];
    }
  }

  const Call& call_;
  BlockMemory& block_;
  int warp_;
  int thread_;
  int num_experts_;
  // Of the list being made:
  bool own_ = false;
  int begin_ = 0, end_ = 0;  ///< tokens of this warp's part
  SourceRoutes routes_{};
  int slot_ = 0;             ///< of the wave
};

}  // namespace flashmoe::cuda_backend::hopper
