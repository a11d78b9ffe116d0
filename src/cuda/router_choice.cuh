// From logits to routes, on one warp: the rules of flashmoe/router.hpp in fp32. A warp that routes one token mostly waits, for
// choices come one after another; so where there are many tokens it routes four of them side by side.
#pragma once

#include <climits>
#include <cstdint>

#include "cuda/router_args.hpp"

namespace flashmoe::cuda_backend {

/// What one warp routes by, and where the routes go; token t's are `t` strides or top_k further.
struct TokenRows {
  const float* logits;          // [tokens][stride], shared memory
  int stride;
  const float* selection_bias;  // [num_experts] or null
  std::uint32_t* scratch;       // [kChoiceScratch], shared memory of the warp alone
  std::int32_t* ids;            // [tokens][top_k]
  float* weights;               // [tokens][top_k]
};

/// Lane l has experts l, l + 32 and so on, kPerLane of them; rank 0 takes one out.
template <int kPerLane, int kTokens>
class RouterChoice {
 public:
  __device__ RouterChoice(const RouterArgs& args, const TokenRows& rows)
      : args_(args), rows_(rows), lane_(static_cast<int>(threadIdx.x % 32)) {}

  /// Writes the routes of `num_tokens` tokens, or of kTokens if they are more. All 32 lanes call it.
  __device__ void route(int num_tokens) {
    last_ = num_tokens - 1;
    load();
    if (grouped() && args_.num_groups > 1) keep_groups();
    if constexpr (kPerLane <= 8) {
      choose();
    } else {
      choose_in_memory();
    }
    float weights[kTokens];
    weigh(weights);
    scale(weights);
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      if (t > last_) break;
      fill(t);
      if (lane_ < args_.top_k) {
        rows_.ids[t * args_.top_k + lane_] = ids_[t];
        rows_.weights[t * args_.top_k + lane_] = lane_ < num_chosen_[t] ? weights[t] : 0.0f;
      }
    }
    __syncwarp();
  }

 private:
  static constexpr unsigned kAll = 0xffffffffu;
  static_assert(kTokens * kPerLane * 32 <= kChoiceScratch);

  __device__ bool grouped() const {
    return args_.function == RouterFunction::sigmoid_grouped || args_.function == RouterFunction::softmax_group_limited;
  }
  /// The last token stands in for those that are not there.
  __device__ const float* logits_of(int t) const { return rows_.logits + min(t, last_) * rows_.stride; }
  __device__ std::uint32_t* scratch_of(int t) const { return rows_.scratch + t * kPerLane * 32; }

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

  /// Sums over `lanes` lanes, a power of two, the same on each of them and always in the same order.
  __device__ static void add_up(float (&values)[kTokens], int lanes) {
    for (int offset = 1; offset < lanes; offset *= 2) {
#pragma unroll
      for (int t = 0; t < kTokens; ++t) values[t] += __shfl_xor_sync(kAll, values[t], offset);
    }
  }
  /// Lanes that have a choice, or more; values of the others are 0.
  __device__ int choosers() const { return args_.top_k == 1 ? 1 : 1 << (32 - __clz(args_.top_k - 1)); }

  /// Logits, and ranks of what experts are chosen by. Softmax and sigmoid keep order, so logits serve as they are where
  /// nothing is added.
  __device__ void load() {
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) {
        const int expert = lane_ + i * 32;
        const bool exists = expert < args_.num_experts;
        logits_[t][i] = exists ? logits_of(t)[expert] : __uint_as_float(0x7fffffffu);
      }
    }
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const bool biased = rows_.selection_bias != nullptr && lane_ + i * 32 < args_.num_experts;
      const float bias = biased ? rows_.selection_bias[lane_ + i * 32] : 0.0f;
#pragma unroll
      for (int t = 0; t < kTokens; ++t) {
        const bool by_sigmoid = args_.function == RouterFunction::sigmoid_grouped;
        ranks_[t][i] = rank_of(by_sigmoid ? sigmoid(logits_[t][i]) + bias : logits_[t][i]);
      }
    }
  }

  /// Ranks of all experts into the scratch.
  __device__ void store_ranks() {
    __syncwarp();
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) scratch_of(t)[lane_ + i * 32] = ranks_[t][i];
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
  /// reads each group, then lane g counts the groups better than group g.
  __device__ void keep_groups() {
    store_ranks();
    const bool two = args_.function == RouterFunction::sigmoid_grouped;
    const int group_size = args_.num_experts / args_.num_groups;
    const int log_lanes = __clz(args_.num_groups - 1) - 27;  // of 32 lanes as many a group as there are for all
    const int lanes = 1 << log_lanes;
    BestTwo best[kTokens];
    if (lane_ >> log_lanes < args_.num_groups) {
      const int first = (lane_ >> log_lanes) * group_size;
      for (int i = lane_ & (lanes - 1); i < group_size; i += lanes) {
#pragma unroll
        for (int t = 0; t < kTokens; ++t) best[t].take(scratch_of(t)[first + i]);
      }
    }
    for (int offset = lanes / 2; offset > 0; offset /= 2) {
#pragma unroll
      for (int t = 0; t < kTokens; ++t) {
        const std::uint32_t first = __shfl_xor_sync(kAll, best[t].first, offset);
        const std::uint32_t second = __shfl_xor_sync(kAll, best[t].second, offset);
        best[t].take(first);
        best[t].take(second);
      }
    }
    std::uint32_t numbers[kTokens];
    std::uint32_t sums[kTokens];
    int num_better[kTokens];
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      const std::uint32_t first = __shfl_sync(kAll, best[t].first, lane_ << log_lanes);
      const std::uint32_t second = __shfl_sync(kAll, best[t].second, lane_ << log_lanes);
      numbers[t] = (first != 0 ? 1u : 0u) + (two && second != 0 ? 1u : 0u);
      const float sum = first == 0 ? 0.0f : score_of(first) + (two && second != 0 ? score_of(second) : 0.0f);
      sums[t] = rank_of(isnan(sum) ? -INFINITY : sum);
      num_better[t] = 0;
    }
    for (int group = 0; group < args_.num_groups; ++group) {
#pragma unroll
      for (int t = 0; t < kTokens; ++t) {
        const std::uint32_t other_numbers = __shfl_sync(kAll, numbers[t], group);
        const std::uint32_t other = __shfl_sync(kAll, sums[t], group);
        const bool wins = other > sums[t] || (other == sums[t] && group < lane_);
        num_better[t] += other_numbers > numbers[t] || (other_numbers == numbers[t] && wins) ? 1 : 0;
      }
    }
    const float inverse = __fdividef(1.0f, static_cast<float>(group_size));
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      const unsigned kept = __ballot_sync(kAll, lane_ < args_.num_groups && num_better[t] < args_.topk_groups);
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) {
        const int group = static_cast<int>((static_cast<float>(lane_ + i * 32) + 0.5f) * inverse);  // exact below 1024
        if ((kept >> (group & 31) & 1u) == 0) ranks_[t][i] = 0;
      }
    }
  }

  struct Ranked {
    std::uint32_t rank;
    int expert;
  };

  /// The highest of this lane's ranks, of equal ones the first; a tree, whose depth is what a warp waits for.
  __device__ Ranked best_of_lane(int t) const {
    Ranked best[kPerLane];
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) best[i] = {ranks_[t][i], lane_ + i * 32};
#pragma unroll
    for (int width = 1; width < kPerLane; width *= 2) {
#pragma unroll
      for (int i = 0; i < kPerLane; i += 2 * width) {
        if (best[i + width].rank > best[i].rank) best[i] = best[i + width];
      }
    }
    return best[0];
  }

  /// Lane k gets the k-th choice: the largest score, then the lowest id.
  __device__ void choose() {
    for (int k = 0; k < args_.top_k; ++k) {
      Ranked best[kTokens];
      std::uint32_t highest[kTokens];
      int chosen[kTokens];
#pragma unroll
      for (int t = 0; t < kTokens; ++t) {
        best[t] = best_of_lane(t);
        highest[t] = __reduce_max_sync(kAll, best[t].rank);
      }
#pragma unroll
      for (int t = 0; t < kTokens; ++t) {
        const bool is_best = best[t].rank == highest[t];
        chosen[t] = static_cast<int>(__reduce_min_sync(kAll, is_best ? static_cast<unsigned>(best[t].expert) : UINT_MAX));
      }
#pragma unroll
      for (int t = 0; t < kTokens; ++t) take(t, k, chosen[t], highest[t]);
#pragma unroll
      for (int t = 0; t < kTokens; ++t) {
#pragma unroll
        for (int i = 0; i < kPerLane; ++i) {
          if (lane_ + i * 32 == chosen[t]) ranks_[t][i] = 0;
        }
      }
    }
  }

  /// No choice where the highest rank left is 0.
  __device__ void take(int t, int k, int expert, std::uint32_t rank) {
    if (rank == 0) return;
    if (lane_ == k) ids_[t] = expert;
    num_chosen_[t] = k + 1;
  }

  /// The same without registers, for more experts than those hold.
  __device__ void choose_in_memory() {
    static_assert(kTokens == 1 || kPerLane <= 8);
    store_ranks();
    for (int k = 0; k < args_.top_k; ++k) {
      Ranked best{0, INT_MAX};
#pragma unroll 4
      for (int expert = lane_; expert < args_.num_experts; expert += 32) {
        const std::uint32_t rank = rows_.scratch[expert];
        if (rank > best.rank) best = {rank, expert};
      }
      const std::uint32_t highest = __reduce_max_sync(kAll, best.rank);
      const bool is_best = best.rank == highest;
      const int chosen =
          static_cast<int>(__reduce_min_sync(kAll, is_best ? static_cast<unsigned>(best.expert) : UINT_MAX));
      take(0, k, chosen, highest);
      if (highest != 0 && lane_ == chosen % 32) rows_.scratch[chosen] = 0;
    }
  }

  /// The weights of the lanes' choices, before renormalisation; 0 on lanes without one.
  __device__ void weigh(float (&weights)[kTokens]) const {
    float logits[kTokens];
    float bests[kTokens];
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      logits[t] = lane_ < num_chosen_[t] ? logits_of(t)[ids_[t]] : 0.0f;
      bests[t] = __shfl_sync(kAll, logits[t], 0);  // of all: the best expert's group is the best one too
      weights[t] = 0.0f;
    }
    switch (args_.function) {
      case RouterFunction::softmax_topk:
      case RouterFunction::softmax_group_limited: {
        float totals[kTokens] = {};
#pragma unroll
        for (int t = 0; t < kTokens; ++t) {
#pragma unroll
          for (int i = 0; i < kPerLane; ++i) {
            totals[t] += isnan(logits_[t][i]) ? 0.0f : softmax_term(logits_[t][i], bests[t]);
          }
        }
        add_up(totals, 32);
#pragma unroll
        for (int t = 0; t < kTokens; ++t) weights[t] = __fdividef(softmax_term(logits[t], bests[t]), totals[t]);
        break;
      }
      case RouterFunction::topk_softmax: {
        float totals[kTokens];
#pragma unroll
        for (int t = 0; t < kTokens; ++t) {
          weights[t] = lane_ < num_chosen_[t] ? softmax_term(logits[t], bests[t]) : 0.0f;
          totals[t] = weights[t];
        }
        add_up(totals, choosers());
#pragma unroll
        for (int t = 0; t < kTokens; ++t) weights[t] = __fdividef(weights[t], totals[t]);
        break;
      }
      case RouterFunction::sigmoid_grouped:
      case RouterFunction::sigmoid_topk: {
#pragma unroll
        for (int t = 0; t < kTokens; ++t) weights[t] = sigmoid(logits[t]);
        break;
      }
      case RouterFunction::sparsemixer: {
#pragma unroll
        for (int t = 0; t < kTokens; ++t) weights[t] = sparsemix(t);
        break;
      }
    }
#pragma unroll
    for (int t = 0; t < kTokens; ++t) weights[t] = lane_ < num_chosen_[t] ? weights[t] : 0.0f;
  }

  __device__ void scale(float (&weights)[kTokens]) const {
    float sums[kTokens];
#pragma unroll
    for (int t = 0; t < kTokens; ++t) sums[t] = weights[t];
    if (args_.renormalize) add_up(sums, choosers());
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      weights[t] *= args_.renormalize ? __fdividef(args_.scaling_factor, sums[t] + 1e-20f) : args_.scaling_factor;
    }
  }

  /// Each choice softmaxed over the experts not chosen before it whose logits lie within the band below it.
  __device__ float sparsemix(int t) const {
    float weight = 0.0f;
    int before = -1;
    for (int k = 0; k < num_chosen_[t]; ++k) {
      const int chosen = __shfl_sync(kAll, ids_[t], k);
      const float best = logits_of(t)[chosen];
      float total = 0.0f;
#pragma unroll 1
      for (int expert = lane_; expert < args_.num_experts; expert += 32) {
        const float logit = logits_of(t)[expert];
        const float distance = (best - logit) / fmaxf(fabsf(logit), best);  // NaN (0 / 0) is within the band
        const bool counts = !isnan(logit) && expert != before && !(distance > 2.0f * args_.jitter_epsilon);
        if (counts) total += softmax_term(logit, best);
      }
#pragma unroll
      for (int offset = 1; offset < 32; offset *= 2) total += __shfl_xor_sync(kAll, total, offset);
      if (lane_ == k) weight = 1.0f / total;
      before = chosen;
    }
    return weight;
  }

  /// Choices that could not be made: the lowest ids not chosen.
  __device__ void fill(int t) {
    int count = num_chosen_[t];
    for (int expert = 0; count < args_.top_k; ++expert) {
      const unsigned holders = __ballot_sync(kAll, lane_ < count && ids_[t] == expert);
      if (holders != 0) continue;
      if (lane_ == count) ids_[t] = expert;
      ++count;
    }
  }

  const RouterArgs& args_;
  const TokenRows& rows_;
  int lane_;
  int last_ = 0;
  int num_chosen_[kTokens] = {};
  int ids_[kTokens] = {};
  float logits_[kTokens][kPerLane];
  std::uint32_t ranks_[kTokens][kPerLane];
};

template <int kPerLane>
__device__ void route_few_experts(const RouterArgs& args, TokenRows rows, int num_tokens) {
  if (num_tokens == 1) return RouterChoice<kPerLane, 1>(args, rows).route(1);
  for (int token = 0; token < num_tokens; token += kTokensAtOnce) {
    RouterChoice<kPerLane, kTokensAtOnce>(args, rows).route(num_tokens - token);
    rows.logits += kTokensAtOnce * rows.stride;
    rows.ids += kTokensAtOnce * args.top_k;
    rows.weights += kTokensAtOnce * args.top_k;
  }
}

/// Routes tokens [0, num_tokens) of `rows` on one warp.
__device__ inline void route_tokens(const RouterArgs& args, TokenRows rows, int num_tokens) {
  if (args.num_experts <= 128) return route_few_experts<4>(args, rows, num_tokens);
  if (args.num_experts <= 256) return route_few_experts<8>(args, rows, num_tokens);
  for (int token = 0; token < num_tokens; ++token) {
    RouterChoice<GpuRouterLimits::num_experts / 32, 1>(args, rows).route(1);
    rows.logits += rows.stride;
    rows.ids += args.top_k;
    rows.weights += args.top_k;
  }
}

}  // namespace flashmoe::cuda_backend
