// Two blocks that take tasks together: a cluster's first block takes two tickets at once, and offers its second block the
// other. Where an expert has several m-blocks these are most often one tile of two of them, and the blocks share its weights:
// each loads one half for both, so that L2 reads them once.
#pragma once

#include <cstdint>

#include "cuda/cluster.cuh"

namespace flashmoe::cuda_backend::hopper {

/// A ticket for the second block, in one word.
class TaskOffer {
 public:
  TaskOffer() = default;
  __device__ explicit TaskOffer(std::uint64_t word) : word_(word) {}
  /// `number`: of the claim, from 1 on.
  __device__ static TaskOffer of(std::uint32_t number, std::uint32_t ticket, bool shared) {
    return TaskOffer{std::uint64_t{number} << 34 | (shared ? kShared : 0) | ticket};
  }
  __device__ static TaskOffer none_follows(std::uint32_t number) { return TaskOffer{std::uint64_t{number} << 34 | kLast}; }

  __device__ std::uint64_t word() const { return word_; }
  __device__ std::uint32_t number() const { return static_cast<std::uint32_t>(word_ >> 34); }
  __device__ std::uint32_t ticket() const { return static_cast<std::uint32_t>(word_); }
  /// The ticket's task and the one before it have the same weights.
  __device__ bool shared() const { return (word_ & kShared) != 0; }
  /// Not a ticket: the first block takes no more.
  __device__ bool last() const { return (word_ & kLast) != 0; }

 private:
  static constexpr std::uint64_t kShared = std::uint64_t{1} << 32;
  static constexpr std::uint64_t kLast = std::uint64_t{1} << 33;
  std::uint64_t word_ = 0;
};

/// In the shared memory of both blocks.
struct PairMail {
  std::uint64_t offer;  ///< to the second block, the latest
  std::uint64_t taken;  ///< to the first block: number of the latest offer that the second has taken
  bool runs;            ///< whether this block runs actors

  __device__ void init() { offer = taken = 0; }
};

/// This block's end of a pair. One thread calls what sends or looks. `kPairs`: of the kernel, whose blocks stand alone otherwise:
/// its code then has nothing of all this, as instructions that a short call never runs still cost it time.
template <bool kPairs>
class BlockPair {
 public:
  __device__ explicit BlockPair(PairMail& mail) : mail_(mail), rank_(kPairs ? ClusterPlace::here().rank : 0) {}

  __device__ bool is_first() const { return kPairs && rank_ == 0; }
  __device__ bool is_second() const { return kPairs && rank_ == 1; }
  /// Of this block in the pair, and of the other.
  __device__ int rank() const { return rank_; }
  __device__ int other() const { return 1 - rank_; }

  /// Whether both blocks run actors; `mine`: whether this one does. Every thread of both blocks asks; what is in their shared
  /// memory is there for the other afterwards.
  __device__ bool both_run(bool mine) const {
    if constexpr (!kPairs) return mine;
    if (threadIdx.x == 0) mail_.runs = mine;
    ClusterPlace::sync();
    return mine && ClusterPlace::load(&mail_.runs, other());
  }
  /// The end of both blocks: neither reaches into the other's shared memory any more.
  __device__ void part() const {
    if constexpr (kPairs) ClusterPlace::sync();
  }

  /// Of the latest claim of two that this block has its ticket of.
  __device__ std::uint32_t claim_number() const { return claim_number_; }

  /// First block: whether the second has taken all offers.
  __device__ bool offer_taken() const { return ClusterPlace::look(&mail_.taken) == last_sent_; }
  /// First block: the second ticket of a new claim, or that it has no task.
  __device__ void offer(std::uint32_t ticket, bool shared) { send(TaskOffer::of(++claim_number_, ticket, shared)); }
  __device__ void offer_nothing() { ++claim_number_; }
  /// Waits until the second block has taken what is offered, which it does whatever happens, then tells it that this was all.
  __device__ void end_offers() {
    while (!offer_taken()) {
    }
    send(TaskOffer::none_follows(++claim_number_));
  }

  /// Second block: takes the next offer if there is one.
  __device__ bool next_offer(TaskOffer& offer) {
    offer = TaskOffer{ClusterPlace::look(&mail_.offer)};
    if (offer.number() == claim_number_) return false;
    claim_number_ = offer.number();
    ClusterPlace::exchange(&mail_.taken, std::uint64_t{claim_number_}, other());
    return true;
  }

 private:
  __device__ void send(const TaskOffer& offer) {
    last_sent_ = offer.number();
    ClusterPlace::exchange(&mail_.offer, offer.word(), other());
  }

  PairMail& mail_;
  int rank_;
  std::uint32_t claim_number_ = 0;
  std::uint32_t last_sent_ = 0;  ///< first block
};

}  // namespace flashmoe::cuda_backend::hopper
