#include "cpu/router.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "core/activation.hpp"
#include "core/numeric.hpp"
#include "cpu/dot.hpp"
#include "flashmoe/error.hpp"
#include "flashmoe/router.hpp"

namespace flashmoe {
namespace {

// exp(logit - best), where equal infinities count as equal.
double softmax_term(double logit, double best) { return logit == best ? 1.0 : std::exp(logit - best); }

// Routes tokens one by one; holds the scratch of one token.
class TokenRouter {
 public:
  TokenRouter(const RouterConfig& config, const float* selection_bias)
      : config_(config), selection_bias_(selection_bias), scores_(config.num_experts), chosen_(config.num_experts) {}

  void route(const float* logits, std::int32_t* ids, float* weights) {
    score(logits);
    choose();
    weigh(logits);
    double sum = 0.0;
    for (const double weight : weights_) sum += weight;
    const double factor = config_.renormalize ? config_.scaling_factor / (sum + 1e-20) : config_.scaling_factor;
    for (std::size_t k = 0; k < chosen_.size(); ++k) {
      ids[k] = chosen_[k];
      weights[k] = static_cast<float>(weights_[k] * factor);
    }
    fill(static_cast<int>(chosen_.size()), ids, weights);
  }

 private:
  bool grouped() const {
    return config_.function == RouterFunction::sigmoid_grouped ||
           config_.function == RouterFunction::softmax_group_limited;
  }
  int group_size() const { return config_.num_experts / config_.num_groups; }

  // What experts are chosen by; NaN takes an expert out. Softmax and sigmoid keep order, so logits serve as they are
  // where nothing is added: no underflow, no saturation, no tie that the logits do not have.
  void score(const float* logits) {
    for (int expert = 0; expert < config_.num_experts; ++expert) {
      scores_[expert] = logits[expert];
      if (config_.function == RouterFunction::sigmoid_grouped) {
        const double bias = selection_bias_ ? selection_bias_[expert] : 0.0;
        scores_[expert] = sigmoid(scores_[expert]) + bias;
      }
    }
  }

  // chosen_: the best top_k eligible experts, in order of falling score, then rising id.
  void choose() {
    chosen_.clear();
    if (grouped()) keep_groups();
    for (int expert = 0; expert < config_.num_experts; ++expert) {
      const bool kept = !grouped() || kept_groups_[expert / group_size()];
      if (kept && !std::isnan(scores_[expert])) chosen_.push_back(expert);
    }
    const std::size_t count = std::min(chosen_.size(), static_cast<std::size_t>(config_.top_k));
    std::partial_sort(chosen_.begin(), chosen_.begin() + count, chosen_.end(), [this](int a, int b) {
      return scores_[a] != scores_[b] ? scores_[a] > scores_[b] : a < b;
    });
    chosen_.resize(count);
  }

  // kept_groups_: the topk_groups groups whose best experts (two for sigmoid_grouped, one else) have the largest sum.
  // A group with fewer numbers than that ranks below every group with enough.
  void keep_groups() {
    struct Group {
      int index;
      int num_numbers;
      double sum;
    };
    const int num_best = config_.function == RouterFunction::sigmoid_grouped ? 2 : 1;
    std::vector<Group> groups;
    for (int index = 0; index < config_.num_groups; ++index) {
      std::vector<double> members;
      for (int expert = index * group_size(); expert < (index + 1) * group_size(); ++expert) {
        if (!std::isnan(scores_[expert])) members.push_back(scores_[expert]);
      }
      const int count = std::min(num_best, static_cast<int>(members.size()));
      std::partial_sort(members.begin(), members.begin() + count, members.end(), std::greater<>());
      double sum = 0.0;
      for (int i = 0; i < count; ++i) sum += members[i];
      groups.push_back({index, count, std::isnan(sum) ? -INFINITY : sum});
    }
    std::partial_sort(groups.begin(), groups.begin() + config_.topk_groups, groups.end(),
                      [](const Group& a, const Group& b) {
                        if (a.num_numbers != b.num_numbers) return a.num_numbers > b.num_numbers;
                        return a.sum != b.sum ? a.sum > b.sum : a.index < b.index;
                      });
    kept_groups_.assign(config_.num_groups, false);
    for (int i = 0; i < config_.topk_groups; ++i) kept_groups_[groups[i].index] = true;
  }

  // weights_[k] of chosen_[k], before renormalisation.
  void weigh(const float* logits) {
    weights_.clear();
    switch (config_.function) {
      case RouterFunction::softmax_topk:
      case RouterFunction::softmax_group_limited: softmax_over_all(logits); break;
      case RouterFunction::topk_softmax: softmax_over_chosen(logits); break;
      case RouterFunction::sigmoid_grouped:
      case RouterFunction::sigmoid_topk:
        for (const int expert : chosen_) weights_.push_back(sigmoid(static_cast<double>(logits[expert])));
        break;
      case RouterFunction::sparsemixer: sparsemix(logits); break;
    }
  }

  void softmax_over_all(const float* logits) {
    double best = -INFINITY;
    for (int expert = 0; expert < config_.num_experts; ++expert) {
      if (logits[expert] > best) best = logits[expert];
    }
    double total = 0.0;
    for (int expert = 0; expert < config_.num_experts; ++expert) {
      if (!std::isnan(logits[expert])) total += softmax_term(logits[expert], best);
    }
    for (const int expert : chosen_) weights_.push_back(softmax_term(logits[expert], best) / total);
  }

  void softmax_over_chosen(const float* logits) {
    double total = 0.0;
    for (const int expert : chosen_) {
      weights_.push_back(softmax_term(logits[expert], logits[chosen_.front()]));
      total += weights_.back();
    }
    for (double& weight : weights_) weight /= total;
  }

  // The k-th choice is softmaxed over the experts not chosen before it whose logits lie within the band below it.
  void sparsemix(const float* logits) {
    for (std::size_t k = 0; k < chosen_.size(); ++k) {
      const double best = logits[chosen_[k]];
      double total = 0.0;
      for (int expert = 0; expert < config_.num_experts; ++expert) {
        const double logit = logits[expert];
        const bool taken = std::find(chosen_.begin(), chosen_.begin() + k, expert) != chosen_.begin() + k;
        const double distance = (best - logit) / std::max(std::abs(logit), best);  // NaN (0 / 0) is within the band
        if (!taken && !std::isnan(logit) && !(distance > 2.0 * config_.jitter_epsilon)) {
          total += softmax_term(logit, best);
        }
      }
      weights_.push_back(1.0 / total);
    }
  }

  // Entries `count`..top_k-1: the lowest ids not chosen, weight 0.
  void fill(int count, std::int32_t* ids, float* weights) const {
    for (std::int32_t expert = 0; count < config_.top_k; ++expert) {
      if (std::find(chosen_.begin(), chosen_.end(), expert) != chosen_.end()) continue;
      ids[count] = expert;
      weights[count++] = 0.0f;
    }
  }

  const RouterConfig& config_;
  const float* selection_bias_;
  std::vector<double> scores_;     // [num_experts]
  std::vector<bool> kept_groups_;  // [num_groups]
  std::vector<int> chosen_;
  std::vector<double> weights_;
};

}  // namespace

void route_logits(const RouterConfig& config, std::int64_t num_tokens, const float* logits, const float* selection_bias,
                  std::int32_t* topk_ids, float* topk_weights) {
  validate(config);
  if (num_tokens < 0) throw InvalidArgument(fmt::format("num_tokens ({}) must be 0 or more", num_tokens));
  if (selection_bias && config.function != RouterFunction::sigmoid_grouped) {
    throw InvalidArgument(fmt::format("a selection bias must come with sigmoid_grouped, but the router function is {}; "
                                      "pass null", to_string(config.function)));
  }
  TokenRouter router(config, selection_bias);
  for (std::int64_t token = 0; token < num_tokens; ++token) {
    router.route(logits + token * config.num_experts, topk_ids + token * config.top_k,
                 topk_weights + token * config.top_k);
  }
}

void router_logits(const RouterGate& gate, DType dtype, ConstRows x, float* logits) {
  const auto count = static_cast<std::size_t>(gate.num_experts) * static_cast<std::size_t>(gate.hidden);
  const std::vector<double> weight(gate.weight, gate.weight + count);
  std::vector<double> row(static_cast<std::size_t>(gate.hidden));
  std::vector<double> sums(static_cast<std::size_t>(gate.num_experts));
  const auto row_bytes = gate.hidden * static_cast<std::int64_t>(dtype_bytes(dtype));
  for (std::int64_t token = 0; token < x.num_rows; ++token) {
    load_doubles(dtype, static_cast<const char*>(x.data) + token * row_bytes, gate.hidden, row.data());
    dot_rows(row.data(), weight.data(), gate.num_experts, gate.hidden, sums.data());
    for (int expert = 0; expert < gate.num_experts; ++expert) {
      const double bias = gate.bias ? gate.bias[expert] : 0.0;
      logits[token * gate.num_experts + expert] = static_cast<float>(sums[expert] + bias);
    }
  }
}

}  // namespace flashmoe
