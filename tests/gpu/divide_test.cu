// divide_small() on a GPU, whole: it does not fall as n grows, so it is right if it is right at every multiple of d and before it.
#include "core/divide.hpp"

#include "gpu/device.hpp"

namespace flashmoe {
namespace {

constexpr int kEnd = 1 << 21;

__global__ void count_wrong(unsigned* wrong) {
  for (int d = 1 + static_cast<int>(blockIdx.x); d < kEnd; d += static_cast<int>(gridDim.x)) {
    for (int n = static_cast<int>(threadIdx.x) * d; n < kEnd; n += static_cast<int>(blockDim.x) * d) {
      const int quotient = n / d;
      const bool right = divide_small(n, d) == quotient && (n == 0 || divide_small(n - 1, d) == quotient - 1);
      if (!right) atomicAdd(wrong, 1u);
    }
    if (threadIdx.x == 0 && divide_small(kEnd - 1, d) != (kEnd - 1) / d) atomicAdd(wrong, 1u);
  }
}

TEST(DeviceDivide, is_exact_for_every_pair) {
  FLASHMOE_REQUIRE_GPUS(1);
  unsigned* wrong = nullptr;
  ASSERT_EQ(cudaMalloc(&wrong, sizeof *wrong), cudaSuccess);
  ASSERT_EQ(cudaMemset(wrong, 0, sizeof *wrong), cudaSuccess);
  count_wrong<<<1024, 128>>>(wrong);
  unsigned seen = 1;
  EXPECT_EQ(cudaMemcpy(&seen, wrong, sizeof seen, cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_EQ(seen, 0u);
  EXPECT_EQ(cudaFree(wrong), cudaSuccess);
}

}  // namespace
}  // namespace flashmoe
