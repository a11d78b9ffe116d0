// From one token's logits to its routes, on one warp: the rules of flashmoe/router.hpp in fp32. A warp waits for the longest
// chain of steps: so choices are not made one after another, but by counting how many are better.
#pragma once

#include <climits>
#include <cstdint>

#include "cuda/router_args.hpp"

namespace flashmoe::cuda_backend {

/// What one warp routes by.
struct TokenScores {
  const float* logits;          // [num_experts]
  const float* selection_bias;  // [num_experts] or null
  std::uint32_t* scratch;       // [choice_scratch(num_experts)], shared memory of the warp alone, 16-byte aligned
};

/// Lane l has experts l, l + 32 and so on, kPerLane of them; NaN, or no expert, takes a place out.
template <int kPerLane>
class RouterChoice {
 public:
  __device__ RouterChoice(const RouterArgs& args, const TokenScores& token)
      : args_(args), token_(token), lane_(static_cast<int>(threadIdx.x % 32)) {}

  /// Writes the token's top_k ids and weights. All 32 lanes call it; logits are visible to all of them.
  __device__ void route(std::int32_t* ids, float* weights) {
    load();
    if (grouped() && args_.num_groups > 1) keep_groups();
    choose();
    float weight = weigh();
    if (args_.renormalize) {
      weight *= __fdividef(args_.scaling_factor, add_up_choices(weight) + 1e-20f);
    } else {
      weight *= args_.scaling_factor;
    }
    fill();
    if (lane_ < args_.top_k) {
      ids[lane_] = id_;
      weights[lane_] = lane_ < num_chosen_ ? weight : 0.0f;
    }
    __syncwarp();
  }

 private:
  static constexpr unsigned kAll = 0xffffffffu;

  __device__ bool grouped() const {
    return args_.function == RouterFunction::sigmoid_grouped || args_.function == RouterFunction::softmax_group_limited;
  }

  /// An unsigned number in the order of the floats; 0 for NaN alone. Zeros of either sign are equal.
  __device__ static std::uint32_t rank_of(float value) {
    if (isnan(value)) return 0;
    const std::uint32_t bits = __float_as_uint(value + 0.0f);
    return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  }
  /// The float of a rank that is not 0.
  __device__ static float score_of(std::uint32_t rank) {
    return __uint_as_float((rank & 0x80000000u) != 0 ? rank & 0x7fffffffu : ~rank);
  }
  __device__ static float sigmoid(float logit) {
    const float power = expf(-fabsf(logit));  // at most 1: nothing overflows
    return __fdividef(logit < 0.0f ? power : 1.0f, 1.0f + power);
  }
  /// exp(logit - best), where equal infinities count as equal.
  __device__ static float softmax_term(float logit, float best) { return logit == best ? 1.0f : expf(logit - best); }

  /// The same sum on every lane, always in the same order.
  __device__ static float add_up(float value) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(kAll, value, offset);
    return value;
  }
  /// The same sum on the lanes that have a choice; the others' values are 0.
  __device__ float add_up_choices(float value) const {
    for (int offset = 1; offset < args_.top_k; offset *= 2) value += __shfl_xor_sync(kAll, value, offset);
    return value;
  }

  /// Logits, and ranks of what experts are chosen by. Softmax and sigmoid keep order, so logits serve as they are where
  /// nothing is added.
  __device__ void load() {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int expert = lane_ + i * 32;
      const bool exists = expert < args_.num_experts;
      logits_[i] = exists ? token_.logits[expert] : __uint_as_float(0x7fffffffu);
      float score = logits_[i];
      if (args_.function == RouterFunction::sigmoid_grouped) {
        score = sigmoid(score) + (exists && token_.selection_bias != nullptr ? token_.selection_bias[expert] : 0.0f);
      }
      ranks_[i] = rank_of(score);
    }
  }

  /// The two best scores of a set of experts, by rank_of(): 0 where there is none.
  struct BestTwo {
    std::uint32_t first = 0;
    std::uint32_t second = 0;

    __device__ void take(std::uint32_t rank) {
      second = max(second, min(first, rank));
      first = max(first, rank);
    }
  };

  /// Takes out the experts of all but the topk_groups groups whose best experts (two for sigmoid_grouped, one else) have
  /// the largest sum. A group with fewer numbers than that ranks below every group with enough. A power of two of lanes
  /// reads each group, then lane g counts the groups better than group g.
  __device__ void keep_groups() {
    store_ranks();
    const bool two = args_.function == RouterFunction::sigmoid_grouped;
    const int group_size = args_.num_experts / args_.num_groups;
    const int log_lanes = __clz(args_.num_groups - 1) - 27;  // of 32 lanes as many a group as there are for all
    const int lanes = 1 << log_lanes;
    BestTwo best;
    if (lane_ >> log_lanes < args_.num_groups) {
      const std::uint32_t* group = token_.scratch + (lane_ >> log_lanes) * group_size;
#pragma unroll 4
      for (int i = lane_ & (lanes - 1); i < group_size; i += lanes) best.take(group[i]);
    }
    for (int offset = lanes / 2; offset > 0; offset /= 2) {
      const std::uint32_t first = __shfl_xor_sync(kAll, best.first, offset);
      const std::uint32_t second = __shfl_xor_sync(kAll, best.second, offset);
      best.take(first);
      best.take(second);
    }
    best.first = __shfl_sync(kAll, best.first, lane_ << log_lanes);
    best.second = __shfl_sync(kAll, best.second, lane_ << log_lanes);
    float sum = best.first == 0 ? 0.0f : score_of(best.first) + (two && best.second != 0 ? score_of(best.second) : 0.0f);
    if (isnan(sum)) sum = -INFINITY;
    const std::uint32_t numbers = (best.first != 0 ? 1u : 0u) + (two && best.second != 0 ? 1u : 0u);
    const std::uint64_t key = std::uint64_t{numbers} << 32 | rank_of(sum);
    int num_better = 0;
#pragma unroll 8
    for (int group = 0; group < args_.num_groups; ++group) {
      const std::uint64_t other = __shfl_sync(kAll, key, group);
      num_better += other > key || (other == key && group < lane_) ? 1 : 0;
    }
    const float inverse = __fdividef(1.0f, static_cast<float>(group_size));
    const unsigned kept = __ballot_sync(kAll, lane_ < args_.num_groups && num_better < args_.topk_groups);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int group = static_cast<int>((static_cast<float>(lane_ + i * 32) + 0.5f) * inverse);  // exact below 1024
      if ((kept >> (group & 31) & 1u) == 0) ranks_[i] = 0;
    }
  }

  /// Ranks of all experts into the scratch.
  __device__ void store_ranks() {
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (lane_ + i * 32 < args_.num_experts) token_.scratch[lane_ + i * 32] = ranks_[i];
    }
    __syncwarp();
  }

  __device__ std::uint32_t best_of_lane() const {
    std::uint32_t best = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) best = max(best, ranks_[i]);
    return best;
  }

  /// How many of 32 ranks in shared memory are above `rank`; of equal ones those before place `place` count too.
  __device__ static int num_better(const std::uint32_t* ranks, std::uint32_t rank, int place) {
    int count = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint4 four = reinterpret_cast<const uint4*>(ranks)[i];
      count += four.x > rank || (four.x == rank && 4 * i < place) ? 1 : 0;
      count += four.y > rank || (four.y == rank && 4 * i + 1 < place) ? 1 : 0;
      count += four.z > rank || (four.z == rank && 4 * i + 2 < place) ? 1 : 0;
      count += four.w > rank || (four.w == rank && 4 * i + 3 < place) ? 1 : 0;
    }
    return count;
  }

  /// Lane k gets the k-th choice: the largest score, then the lowest id. No choice ranks below the top_k-th best of what the
  /// lanes have as their best; what reaches that are few candidates, one a lane, in the order of their ids.
  __device__ void choose() {
    std::uint32_t* bests = token_.scratch;
    std::uint32_t* candidates = bests + 32;
    std::uint32_t* experts = candidates + 32;
    const std::uint32_t best = best_of_lane();
    __syncwarp();
    bests[lane_] = best;
    candidates[lane_] = 0;
    __syncwarp();
    const bool among_top = num_better(bests, best, lane_) < args_.top_k;
    const std::uint32_t least = max(__reduce_min_sync(kAll, among_top ? best : UINT_MAX), 1u);
    int num_candidates = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const bool is_candidate = ranks_[i] >= least;
      const unsigned lanes = __ballot_sync(kAll, is_candidate);
      const int place = num_candidates + __popc(lanes & ((1u << lane_) - 1u));
      if (is_candidate && place < 32) {
        candidates[place] = ranks_[i];
        experts[place] = static_cast<std::uint32_t>(lane_ + i * 32);
      }
      num_candidates += __popc(lanes);
    }
    if (num_candidates > 32) return choose_one_by_one();
    __syncwarp();
    const int place = num_better(candidates, candidates[lane_], lane_);
    if (lane_ < num_candidates && place < args_.top_k) bests[place] = experts[lane_];
    __syncwarp();
    num_chosen_ = min(num_candidates, args_.top_k);
    if (lane_ < num_chosen_) id_ = static_cast<int>(bests[lane_]);
  }

  /// Many equal scores, or many choices.
  __device__ void choose_one_by_one() {
    store_ranks();
    for (num_chosen_ = 0; num_chosen_ < args_.top_k; ++num_chosen_) {
      std::uint32_t best = 0;
      unsigned best_expert = UINT_MAX;
#pragma unroll 1
      for (int expert = lane_; expert < args_.num_experts; expert += 32) {
        const std::uint32_t rank = token_.scratch[expert];
        if (rank > best) best = rank, best_expert = static_cast<unsigned>(expert);
      }
      const std::uint32_t highest = __reduce_max_sync(kAll, best);
      if (highest == 0) return;
      const int chosen = static_cast<int>(__reduce_min_sync(kAll, best == highest ? best_expert : UINT_MAX));
      if (lane_ == num_chosen_) id_ = chosen;
      if (lane_ == chosen % 32) token_.scratch[chosen] = 0;
    }
  }

  /// The weight of this lane's choice, before renormalisation; 0 on lanes without one.
  __device__ float weigh() const {
    const float logit = lane_ < num_chosen_ ? token_.logits[id_] : 0.0f;
    const float best = __shfl_sync(kAll, logit, 0);  // of all: the best expert's group is the best one too
    float weight = 0.0f;
    switch (args_.function) {
      case RouterFunction::softmax_topk:
      case RouterFunction::softmax_group_limited: {
        float total = 0.0f;
#pragma unroll
        for (int i = 0; i < kPerLane; ++i) total += isnan(logits_[i]) ? 0.0f : softmax_term(logits_[i], best);
        weight = __fdividef(softmax_term(logit, best), add_up(total));
        break;
      }
      case RouterFunction::topk_softmax: {
        weight = lane_ < num_chosen_ ? softmax_term(logit, best) : 0.0f;
        weight = __fdividef(weight, add_up_choices(weight));
        break;
      }
      case RouterFunction::sigmoid_grouped:
      case RouterFunction::sigmoid_topk: weight = sigmoid(logit); break;
      case RouterFunction::sparsemixer: weight = sparsemix(); break;
    }
    return lane_ < num_chosen_ ? weight : 0.0f;
  }

  /// Each choice softmaxed over the experts not chosen before it whose logits lie within the band below it.
  __device__ float sparsemix() const {
    float weight = 0.0f;
    int before = -1;
    for (int k = 0; k < num_chosen_; ++k) {
      const int chosen = __shfl_sync(kAll, id_, k);
      const float best = token_.logits[chosen];
      float total = 0.0f;
#pragma unroll 1
      for (int expert = lane_; expert < args_.num_experts; expert += 32) {
        const float logit = token_.logits[expert];
        const float distance = (best - logit) / fmaxf(fabsf(logit), best);  // NaN (0 / 0) is within the band
        const bool counts = !isnan(logit) && expert != before && !(distance > 2.0f * args_.jitter_epsilon);
        if (counts) total += softmax_term(logit, best);
      }
      total = add_up(total);
      if (lane_ == k) weight = 1.0f / total;
      before = chosen;
    }
    return weight;
  }

  /// Choices that could not be made: the lowest ids not chosen.
  __device__ void fill() {
    int count = num_chosen_;
    for (int expert = 0; count < args_.top_k; ++expert) {
      const unsigned holders = __ballot_sync(kAll, lane_ < count && id_ == expert);
      if (holders != 0) continue;
      if (lane_ == count) id_ = expert;
      ++count;
    }
  }

  const RouterArgs& args_;
  const TokenScores& token_;
  int lane_;
  int num_chosen_ = 0;
  int id_ = -1;
  float logits_[kPerLane];
  std::uint32_t ranks_[kPerLane];
};

/// Routes one token on one warp; see RouterChoice::route().
__device__ inline void route_token(const RouterArgs& args, const TokenScores& token, std::int32_t* ids, float* weights) {
  if (args.num_experts <= 128) {
    RouterChoice<4>(args, token).route(ids, weights);
  } else if (args.num_experts <= 256) {
    RouterChoice<8>(args, token).route(ids, weights);
  } else {
    RouterChoice<GpuRouterLimits::num_experts / 32>(args, token).route(ids, weights);
  }
}

}  // namespace flashmoe::cuda_backend
