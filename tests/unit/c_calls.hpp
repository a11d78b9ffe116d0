// What tests of the C interface have in common.
#pragma once

#include <gmock/gmock.h>

#include <string>

#include "api/c_structs.hpp"
#include "flashmoe/flashmoe.h"
#include "support/batch.hpp"
#include "support/local_weights.hpp"

namespace flashmoe::test {

/// Expects `status` to be an error of that kind whose sentence contains `message`.
inline void expect_failure(flashmoe_status status, flashmoe_status wanted, const std::string& message) {
  EXPECT_EQ(status, wanted) << flashmoe_status_name(status);
  EXPECT_THAT(flashmoe_last_error(), testing::HasSubstr(message));
}

inline Problem small_problem(int num_ranks) {
  return {.num_ranks = num_ranks, .hidden = 32, .intermediate = 24, .num_experts = 4, .top_k = 2, .max_tokens = 20,
          .dtype = DType::fp32, .up_bias = true, .down_bias = true};
}

inline flashmoe_call make_call(Batch& batch) {
  flashmoe_call call;
  flashmoe_call_init(&call);
  call.num_tokens = batch.num_tokens;
  call.x = batch.x.data();
  call.topk_ids = batch.topk_ids.data();
  call.topk_weights = batch.topk_weights.data();
  call.y = batch.y.data();
  return call;
}

inline flashmoe_weights make_weights(const LocalWeights& weights) {
  flashmoe_weights c;
  flashmoe_weights_init(&c);
  const WeightsView view = weights.view();
  c.up = view.up;
  c.down = view.down;
  c.up_bias = view.up_bias;
  c.down_bias = view.down_bias;
  return c;
}

/// A layer of one rank; null when it was refused.
struct OneLayer {
  const Problem problem = small_problem(1);
  const DenseExperts experts{problem, 5};
  const LocalWeights weights{problem, experts, 0};
  flashmoe_group* group = nullptr;
  flashmoe_layer* layer = nullptr;

  explicit OneLayer(const flashmoe_group_options* options = nullptr) {
    const flashmoe_problem c_problem = to_c(problem);
    const flashmoe_weights c_weights = make_weights(weights);
    if (flashmoe_group_create_local(1, options, &group) != FLASHMOE_OK) return;
    flashmoe_layer_create(group, 0, &c_problem, &c_weights, 0, &layer);
  }
  ~OneLayer() {
    flashmoe_layer_destroy(layer);
    flashmoe_group_destroy(group);
  }
  OneLayer(const OneLayer&) = delete;
  OneLayer& operator=(const OneLayer&) = delete;
};

}  // namespace flashmoe::test
