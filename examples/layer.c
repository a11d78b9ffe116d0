/* The C interface: a layer of 4 experts on one rank, with the routes of two tokens given. */
#include <stdio.h>
#include <stdlib.h>

#include "flashmoe/flashmoe.h"

static void check(flashmoe_status status) {
  if (status == FLASHMOE_OK) return;
  fprintf(stderr, "%s: %s\n", flashmoe_status_name(status), flashmoe_last_error());
  exit(1);
}

int main(void) {
  enum { hidden = 16, intermediate = 8, num_experts = 4, top_k = 2, num_tokens = 2 };
  check(FLASHMOE_CHECK_VERSION());

  flashmoe_problem problem;
  flashmoe_problem_init(&problem);
  problem.hidden = hidden;
  problem.intermediate = intermediate;
  problem.num_experts = num_experts;
  problem.top_k = top_k;
  problem.max_tokens = num_tokens;
  problem.dtype = FLASHMOE_FP32;
  problem.activation = FLASHMOE_RELU;
  problem.gated = 0;

  /* Expert e multiplies by e + 1: every up weight is (e + 1) / hidden, every down weight 1 / intermediate. */
  static float up[num_experts][intermediate][hidden], down[num_experts][hidden][intermediate];
  for (int e = 0; e < num_experts; ++e) {
    for (int i = 0; i < intermediate; ++i) {
      for (int h = 0; h < hidden; ++h) {
        up[e][i][h] = (float)(e + 1) / hidden;
        down[e][h][i] = 1.0f / intermediate;
      }
    }
  }
  flashmoe_weights weights;
  flashmoe_weights_init(&weights);
  weights.up = up;
  weights.down = down;

  flashmoe_group* group = NULL;
  flashmoe_layer* layer = NULL;
  check(flashmoe_group_create_local(1, NULL, &group));
  check(flashmoe_layer_create(group, 0, &problem, &weights, 0, &layer));

  float x[num_tokens][hidden], y[num_tokens][hidden];
  for (int t = 0; t < num_tokens; ++t) {
    for (int h = 0; h < hidden; ++h) x[t][h] = 1.0f;
  }
  const int32_t topk_ids[num_tokens][top_k] = {{0, 3}, {2, -1}}; /* -1: no route */
  const float topk_weights[num_tokens][top_k] = {{0.5f, 0.5f}, {1.0f, 0.0f}};

  flashmoe_call call;
  flashmoe_call_init(&call);
  call.num_tokens = num_tokens;
  call.x = x;
  call.topk_ids = &topk_ids[0][0];
  call.topk_weights = &topk_weights[0][0];
  call.y = y;
  check(flashmoe_layer_forward(layer, &call, NULL));
  printf("token 0: %.3f (wanted 2.5), token 1: %.3f (wanted 3)\n", y[0][0], y[1][0]);

  flashmoe_layer_destroy(layer);
  flashmoe_group_destroy(group);
  return y[0][0] == 2.5f && y[1][0] == 3.0f ? 0 : 1;
}
