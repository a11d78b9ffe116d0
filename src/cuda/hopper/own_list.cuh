// The list of a rank's own routes where they are listed at once (Call::lists_at_once()): made by the consumers of the first
// block, which have no task yet, with counts in shared memory. What comes out is what a subscriber makes of them step by
// step (Subscriber::build_image, open_wave), in a fraction of the time: nothing is told or awaited in between.
#pragma once

#include <cstdint>

#include "actors/call.hpp"
#include "actors/route_plan.hpp"
#include "actors/signal.hpp"
#include "cuda/groups.cuh"
#include "cuda/hopper/block.cuh"

namespace flashmoe::cuda_backend::hopper {

/// A subscriber whose block's consumers make the list of the rank's own routes.
struct SubscriberWarp : WarpGroup {
  Barrier* listed;
  __device__ void await_own_list() const { listed->wait(0); }
};

/// Consumer warp w has the w-th part of the tokens. It counts its routes to every expert; sums over experts and parts turn the
/// counts into places in the list, from where it fills them in turn.
class OwnList {
 public:
  /// `warp`: of the consumer warps.
  __device__ OwnList(const Call& call, BlockMemory& block, int warp)
      : call_(call), block_(block), warp_(warp), thread_(warp * 32 + static_cast<int>(threadIdx.x % 32)),
        num_experts_(call.geometry().num_local_experts),
        slot_(call.wave_slot(call.rank, ring_slot(call))), image_(call.image(slot_)) {}

  /// All consumers of the block.
  __device__ void make() {
    for (int i = thread_; i < (kConsumerWarps * num_experts_ + 1) / 2; i += kThreads) count_pairs()[i] = 0;
    await_consumers();
    count_routes();
    await_consumers();
    const std::uint32_t num_entries = find_places();
    await_consumers();
    place_routes(num_entries);
    await_consumers();  // the list is complete
    for (int expert = thread_; expert < num_experts_; expert += kThreads) {
      const std::uint32_t landed = call_.wave_base(slot_)[expert] + call_.expert_offsets(slot_)[expert + 1] -
                                   call_.expert_offsets(slot_)[expert];
      publish(&call_.landed(slot_)[expert], landed);
    }
    block_.listed.arrive();
    if (thread_ % 128 == 0) block_.logs[kFirstConsumerRow + warp_ / 4].worked();
  }

 private:
  static constexpr int kThreads = kConsumerWarps * 32;

  __device__ static int ring_slot(const Call& call) {
    return call.lined() ? 0 : call.ring_slot(call.epoch_state().wave_sequence[call.rank]);
  }

  // The staging areas: sums of warps, and [kConsumerWarps][num_experts] counts; see listed_routes().
  __device__ std::uint32_t* sums() const { return reinterpret_cast<std::uint32_t*>(block_.staging[0]); }
  __device__ std::uint32_t* count_pairs() const { return sums() + kConsumerWarps; }
  __device__ std::uint16_t* counts(int warp) const {
    return reinterpret_cast<std::uint16_t*>(count_pairs()) + warp * num_experts_;
  }

  /// visit(route, local expert) for this warp's part of the routes, 32 at a time; the expert is -1 where it is none of this
  /// rank's.
  template <class Visit>
  __device__ void visit_part(const Visit& visit) const {
    const auto first_expert = static_cast<std::uint32_t>(call_.rank * num_experts_);
    const TokenRange part = share_of(call_.num_tokens, kConsumerWarps, warp_);
    each_route(WarpGroup{}, call_.geometry(), call_.topk_ids, part, [&](std::int32_t route, std::int32_t id) {
      const std::uint32_t expert = static_cast<std::uint32_t>(id) - first_expert;
      visit(route, expert < static_cast<std::uint32_t>(num_experts_) ? static_cast<int>(expert) : -1);
    });
  }

  __device__ void count_routes() const {
    visit_part([&](std::int32_t, int expert) {
      const int at = warp_ * num_experts_ + expert;
      if (expert >= 0) atomicAdd(&count_pairs()[at / 2], at % 2 == 0 ? 1u : 1u << 16);
    });
  }

  /// Opens the wave, but for rows that have landed. counts(w)[e] becomes the place of part w's first route to expert e.
  __device__ std::uint32_t find_places() const {
    const WarpGroup warp;
    std::uint32_t total = 0;
    for (int base = 0; base < num_experts_; base += kThreads) {
      const int expert = base + thread_;
      const bool exists = expert < num_experts_;
      std::uint32_t routes = 0;
      for (int part = 0; exists && part < kConsumerWarps; ++part) routes += counts(part)[expert];
      const Scan scan = warp.scan(routes);
      if (warp.leader()) sums()[warp_] = scan.total;
      await_consumers();
      std::uint32_t place = total + scan.before;
      for (int other = 0; other < kConsumerWarps; ++other) {
        const std::uint32_t sum = sums()[other];
        if (other < warp_) place += sum;
        total += sum;
      }
      if (exists) {
        image_.counts()[expert] = routes;
        call_.expert_offsets(slot_)[expert] = place;
        call_.wave_base(slot_)[expert] = call_.landed(slot_)[expert];
      }
      for (int part = 0; exists && part < kConsumerWarps; ++part) {
        const std::uint32_t first = place;
        place += counts(part)[expert];
        counts(part)[expert] = static_cast<std::uint16_t>(first);
      }
      await_consumers();  // before the sums are written again
    }
    if (thread_ == 0) {
      const auto num_slots = static_cast<std::uint32_t>(call_.num_tokens);
      finish_image_head(image_, num_slots, total);
      call_.expert_offsets(slot_)[num_experts_] = total;
      call_.wave(slot_) = {num_slots, total, 0, 0, 0};
    }
    return total;
  }

  __device__ void place_routes(std::uint32_t num_entries) const {
    float* const weights = call_.plan.list_weights ? image_.weights(num_entries) : nullptr;
    const WarpGroup warp;
    visit_part([&](std::int32_t route, int expert) {
      const Match match = warp.match(expert);
      std::uint16_t* const next = counts(warp_) + expert;
      const std::uint32_t place = expert < 0 ? 0 : *next + static_cast<std::uint32_t>(match.index);
      warp.sync();
      if (expert >= 0) {
        if (match.index == match.count - 1) *next = static_cast<std::uint16_t>(place + 1);
        const auto token = static_cast<std::uint32_t>(route / call_.geometry().top_k);
        image_.set_entry(place, {token, static_cast<std::uint32_t>(route)});
        if (weights != nullptr) weights[place] = call_.topk_weights[route];
      }
      warp.sync();
    });
  }

  const Call& call_;
  BlockMemory& block_;
  int warp_;
  int thread_;
  int num_experts_;
  int slot_;
  RouteImage image_;
};

}  // namespace flashmoe::cuda_backend::hopper
