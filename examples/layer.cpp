// A layer of 8 experts on 2 ranks, each rank a thread: tokens in, results out.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <thread>
#include <vector>

#include "flashmoe/flashmoe.hpp"

int run_rank(const flashmoe::Group& group, int rank) try {
  const flashmoe::Problem problem{.num_ranks = 2, .hidden = 64, .intermediate = 96, .num_experts = 8, .top_k = 2,
                                  .max_tokens = 16, .dtype = flashmoe::DType::fp32};
  // This rank's experts: up [4][2 * 96][64], gate rows first; down [4][64][96]. A checkpoint would fill them.
  const std::vector<float> up(4 * 192 * 64, 0.05f), down(4 * 64 * 96, 0.1f);
  flashmoe::Layer layer(group, rank, problem, {.up = up.data(), .down = down.data()});

  const int num_tokens = rank == 0 ? 16 : 3;  // ranks bring what they have, nothing included
  std::vector<float> x(num_tokens * 64, 0.25f), y(x.size()), weights(num_tokens * 2, 0.5f);
  std::vector<std::int32_t> ids(num_tokens * 2);
  for (int route = 0; route < num_tokens * 2; ++route) ids[route] = route % 8;  // two of the eight experts each

  const flashmoe::CallStats stats =
      layer.forward({x.data(), num_tokens}, {ids.data(), weights.data()}, {y.data(), num_tokens});
  std::printf("rank %d: y[0][0] = %.4f, %lu bytes of rows sent\n", rank, y[0],
              static_cast<unsigned long>(stats.wire_bytes));
  return std::abs(y[0] - 4.2392f) < 1e-3f ? 0 : 1;  // 96 * 0.1 * silu(0.8) * 0.8
} catch (const std::exception& error) {
  std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
  return 1;
}

int main() {
  const flashmoe::Group group = flashmoe::Group::local(2);
  int results[2];
  std::thread other([&] { results[1] = run_rank(group, 1); });
  results[0] = run_rank(group, 0);
  other.join();
  return results[0] + results[1];
}
