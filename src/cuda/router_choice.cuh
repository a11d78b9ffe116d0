// From one token's logits to its routes, on one warp: the rules of flashmoe/router.hpp in fp32.
#pragma once

#include <climits>
#include <cstdint>

#include "cuda/router_args.hpp"

namespace flashmoe::cuda_backend {

/// One token's logits and selection scores, [num_experts] each, in shared memory of the warp alone.
struct TokenScores {
  const float* logits;
  float* scores;
};

class RouterChoice {
 public:
  __device__ RouterChoice(const RouterArgs& args, TokenScores token)
      : args_(args), logits_(token.logits), scores_(token.scores), lane_(static_cast<int>(threadIdx.x % 32)) {}

  /// Writes the token's top_k ids and weights. All 32 lanes call it; logits are visible to all of them.
  __device__ void route(std::int32_t* ids, float* weights) {
    score();
    if (grouped() && args_.num_groups > 1) keep_groups();
    choose();
    float weight = weigh();
    const float sum = add_up(weight);
    weight *= args_.renormalize ? args_.scaling_factor / (sum + 1e-20f) : args_.scaling_factor;
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
    return (logit < 0.0f ? power : 1.0f) / (1.0f + power);
  }
  /// exp(logit - best), where equal infinities count as equal.
  __device__ static float softmax_term(float logit, float best) { return logit == best ? 1.0f : expf(logit - best); }

  /// The same sum on every lane, always in the same order.
  __device__ static float add_up(float value) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(kAll, value, offset);
    return value;
  }

  template <class Term>
  __device__ float sum_over_experts(const Term& term) const {
    float sum = 0.0f;
    for (int expert = lane_; expert < args_.num_experts; expert += 32) {
      if (!isnan(logits_[expert])) sum += term(expert, logits_[expert]);
    }
    return add_up(sum);
  }

  // What experts are chosen by; NaN takes an expert out. Softmax and sigmoid keep order, so logits serve as they are
  // where nothing is added.
  __device__ void score() {
    for (int expert = lane_; expert < args_.num_experts; expert += 32) {
      float score = logits_[expert];
      if (args_.function == RouterFunction::sigmoid_grouped) {
        score = sigmoid(score) + (args_.selection_bias != nullptr ? args_.selection_bias[expert] : 0.0f);
      }
      scores_[expert] = score;
    }
    __syncwarp();
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
  /// reads each group, then lane g ranks group g.
  __device__ void keep_groups() {
    const bool two = args_.function == RouterFunction::sigmoid_grouped;
    const int group_size = args_.num_experts / args_.num_groups;
    const int log_lanes = __clz(args_.num_groups - 1) - 27;  // of 32 lanes as many a group as there are for all
    const int lanes = 1 << log_lanes;
    BestTwo best;
    if (lane_ >> log_lanes < args_.num_groups) {
      const float* group = scores_ + (lane_ >> log_lanes) * group_size;
#pragma unroll 4
      for (int i = lane_ & (lanes - 1); i < group_size; i += lanes) best.take(rank_of(group[i]));
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
    std::uint32_t numbers = 1u + (best.first != 0 ? 1u : 0u) + (two && best.second != 0 ? 1u : 0u);
    if (lane_ >= args_.num_groups) numbers = 0;
    std::uint32_t kept = 0;
    for (int i = 0; i < args_.topk_groups; ++i) {
      const bool open = (kept >> lane_ & 1u) == 0;
      const std::uint32_t most = __reduce_max_sync(kAll, open ? numbers : 0u);
      const bool likely = open && numbers == most;
      const std::uint32_t highest = __reduce_max_sync(kAll, likely ? rank_of(sum) : 0u);
      kept |= 1u << (__ffs(static_cast<int>(__ballot_sync(kAll, likely && rank_of(sum) == highest))) - 1);
    }
    for (int expert = lane_; expert < args_.num_experts; expert += 32) {
      if ((kept >> (expert / group_size) & 1u) == 0) scores_[expert] = __uint_as_float(0x7fffffffu);
    }
    __syncwarp();
  }

  /// This lane's best expert among those left; rank 0 when none is.
  __device__ void look(std::uint32_t& best_rank, int& best_expert) const {
    best_rank = 0;
    best_expert = INT_MAX;
    for (int expert = lane_; expert < args_.num_experts; expert += 32) {
      const std::uint32_t rank = rank_of(scores_[expert]);
      if (rank > best_rank) {
        best_rank = rank;
        best_expert = expert;
      }
    }
  }

  /// Lane k gets the k-th choice: the largest score, then the lowest id.
  __device__ void choose() {
    if (args_.num_experts <= 128) return choose_in_registers<4>();
    if (args_.num_experts <= 256) return choose_in_registers<8>();
    choose_in_memory();
  }

  /// With kPerLane experts a lane.
  template <int kPerLane>
  __device__ void choose_in_registers() {
    std::uint32_t ranks[kPerLane];
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int expert = lane_ + i * 32;
      ranks[i] = expert < args_.num_experts ? rank_of(scores_[expert]) : 0;
    }
    for (num_chosen_ = 0; num_chosen_ < args_.top_k; ++num_chosen_) {
      std::uint32_t rank = ranks[0];
      int expert = lane_;
#pragma unroll
      for (int i = 1; i < kPerLane; ++i) {
        if (ranks[i] > rank) {
          rank = ranks[i];
          expert = lane_ + i * 32;
        }
      }
      const std::uint32_t highest = __reduce_max_sync(kAll, rank);
      if (highest == 0) return;
      const int chosen =
          static_cast<int>(__reduce_min_sync(kAll, rank == highest ? static_cast<unsigned>(expert) : UINT_MAX));
      if (lane_ == num_chosen_) id_ = chosen;
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) {
        if (lane_ + i * 32 == chosen) ranks[i] = 0;
      }
    }
  }

  __device__ void choose_in_memory() {
    std::uint32_t rank;
    int expert;
    look(rank, expert);
    for (num_chosen_ = 0; num_chosen_ < args_.top_k; ++num_chosen_) {
      const std::uint32_t highest = __reduce_max_sync(kAll, rank);
      if (highest == 0) return;
      const int chosen =
          static_cast<int>(__reduce_min_sync(kAll, rank == highest ? static_cast<unsigned>(expert) : UINT_MAX));
      if (lane_ == num_chosen_) id_ = chosen;
      if (lane_ == chosen % 32) {
        scores_[chosen] = __uint_as_float(0x7fffffffu);
        look(rank, expert);
      }
    }
  }

  /// The weight of this lane's choice, before renormalisation; 0 on lanes without one.
  __device__ float weigh() const {
    const float logit = lane_ < num_chosen_ ? logits_[id_] : 0.0f;
    float weight = 0.0f;
    switch (args_.function) {
      case RouterFunction::softmax_topk:
      case RouterFunction::softmax_group_limited: weight = softmax_over_all(logit); break;
      case RouterFunction::topk_softmax: {
        const float best = __shfl_sync(kAll, logit, 0);
        weight = lane_ < num_chosen_ ? softmax_term(logit, best) : 0.0f;
        weight /= add_up(weight);
        break;
      }
      case RouterFunction::sigmoid_grouped:
      case RouterFunction::sigmoid_topk: weight = sigmoid(logit); break;
      case RouterFunction::sparsemixer: weight = sparsemix(); break;
    }
    return lane_ < num_chosen_ ? weight : 0.0f;
  }

  __device__ float softmax_over_all(float logit) const {
    float best = -INFINITY;
    for (int expert = lane_; expert < args_.num_experts; expert += 32) best = fmaxf(best, logits_[expert]);
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) best = fmaxf(best, __shfl_xor_sync(kAll, best, offset));
    const float total = sum_over_experts([&](int, float other) { return softmax_term(other, best); });
    return softmax_term(logit, best) / total;
  }

  /// Each choice softmaxed over the experts not chosen before it whose logits lie within the band below it.
  __device__ float sparsemix() const {
    float weight = 0.0f;
    int before = -1;
    for (int k = 0; k < num_chosen_; ++k) {
      const int chosen = __shfl_sync(kAll, id_, k);
      const float best = logits_[chosen];
      const float total = sum_over_experts([&](int expert, float logit) {
        const float distance = (best - logit) / fmaxf(fabsf(logit), best);  // NaN (0 / 0) is within the band
        return expert == before || distance > 2.0f * args_.jitter_epsilon ? 0.0f : softmax_term(logit, best);
      });
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
  const float* logits_;
  float* scores_;
  int lane_;
  int num_chosen_ = 0;
  int id_ = -1;
};

}  // namespace flashmoe::cuda_backend
