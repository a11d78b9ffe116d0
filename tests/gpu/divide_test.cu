// divide_small() on a GPU, whole: it does not fall as n grows, so it is right if it is right at every multiple of d and before it.
#include "core/divide.hpp"

#include "gpu/device.hpp"

namespace flashmoe {
namespace {

constexpr int kEnd = 1 << 21;

struct Counts {
  unsigned wrong, divisors;
};

__global__ void look_at_all(Counts* counts) {
  for (int d = 1 + static_cast<int>(blockIdx.x); d < kEnd; d += static_cast<int>(gridDim.x)) {
    for (int n = static_cast<int>(threadIdx.x) * d; n < kEnd; n += static_cast<int>(blockDim.x) * d) {
      const int quotient = n / d;
      const bool right = divide_small(n, d) == quotient && (n == 0 || divide_small(n - 1, d) == quotient - 1);
      if (!right) atomicAdd(&counts->wrong, 1u);
    }
    if (threadIdx.x > 0) continue;
    if (divide_small(kEnd - 1, d) != (kEnd - 1) / d) atomicAdd(&counts->wrong, 1u);
    atomicAdd(&counts->divisors, 1u);
  }
}

TEST(DeviceDivide, is_exact_for_every_pair) {
  FLASHMOE_REQUIRE_GPUS(1);
  Counts* counts = nullptr;
  ASSERT_EQ(cudaMalloc(&counts, sizeof *counts), cudaSuccess);
  ASSERT_EQ(cudaMemset(counts, 0, sizeof *counts), cudaSuccess);
  look_at_all<<<1024, 128>>>(counts);
  ASSERT_EQ(cudaGetLastError(), cudaSuccess);
  Counts seen{1, 0};
  EXPECT_EQ(cudaMemcpy(&seen, counts, sizeof seen, cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_EQ(seen.wrong, 0u);
  EXPECT_EQ(seen.divisors, kEnd - 1u);
  EXPECT_EQ(cudaFree(counts), cudaSuccess);
}

}  // namespace
}  // namespace flashmoe
