// The emulator's signals, compiled for the device: an observed count makes what was written before it visible.
#include <cstdint>

#include "actors/signal.hpp"
#include "gpu/device.hpp"

namespace flashmoe {
namespace {

constexpr int kNumValues = 1024;
constexpr long long kSpinLimit = 1ll << 28;

struct Mailbox {
  std::uint64_t arrived;
  std::uint32_t values[kNumValues];
};

/// Block 0 fills the mailbox and signals once per thread; block 1 waits for all signals and sums what it sees.
template <Scope scope>
__global__ void exchange(Mailbox* mailbox, std::uint64_t base, std::uint32_t round, unsigned long long* sum) {
  const std::uint64_t expected = base + blockDim.x;
  if (blockIdx.x == 0) {
    for (unsigned i = threadIdx.x; i < kNumValues; i += blockDim.x) mailbox->values[i] = round + i;
    add<scope>(&mailbox->arrived, std::uint64_t{1});
    return;
  }
  long long spins = 0;
  while (observe<scope>(&mailbox->arrived) < expected && spins < kSpinLimit) ++spins;
  unsigned long long part = 0;
  for (unsigned i = threadIdx.x; i < kNumValues; i += blockDim.x) part += mailbox->values[i];
  atomicAdd(sum, part);
}

template <Scope scope>
void exchange_rounds(Mailbox* mailbox) {
  unsigned long long* sum = nullptr;
  ASSERT_EQ(cudaMalloc(&sum, sizeof *sum), cudaSuccess);
  ASSERT_EQ(cudaMemset(mailbox, 0, sizeof *mailbox), cudaSuccess);
  constexpr int kNumThreads = 128;
  for (std::uint32_t round = 0; round < 100; ++round) {  // the counter is never reset
    ASSERT_EQ(cudaMemset(sum, 0, sizeof *sum), cudaSuccess);
    exchange<scope><<<2, kNumThreads>>>(mailbox, std::uint64_t{round} * kNumThreads, round, sum);
    unsigned long long seen = 0;
    ASSERT_EQ(cudaMemcpy(&seen, sum, sizeof seen, cudaMemcpyDeviceToHost), cudaSuccess);
    const unsigned long long expected =
        static_cast<unsigned long long>(round) * kNumValues + kNumValues * (kNumValues - 1ull) / 2;
    EXPECT_EQ(seen, expected) << "round " << round;
  }
  EXPECT_EQ(cudaFree(sum), cudaSuccess);
}

TEST(DeviceSignal, ShowsRowsWrittenBeforeTheAddToAnotherBlock) {
  FLASHMOE_REQUIRE_GPUS(1);
  Mailbox* mailbox = nullptr;
  ASSERT_EQ(cudaMalloc(&mailbox, sizeof *mailbox), cudaSuccess);
  exchange_rounds<Scope::device>(mailbox);
  EXPECT_EQ(cudaFree(mailbox), cudaSuccess);
}

TEST(DeviceSignal, WorksOnPinnedHostMemoryAtSystemScope) {
  FLASHMOE_REQUIRE_GPUS(1);
  Mailbox* mailbox = nullptr;
  ASSERT_EQ(cudaMallocHost(&mailbox, sizeof *mailbox), cudaSuccess);
  exchange_rounds<Scope::system>(mailbox);
  EXPECT_EQ(mailbox->arrived, 100u * 128u);
  EXPECT_EQ(cudaFreeHost(mailbox), cudaSuccess);
}

}  // namespace
}  // namespace flashmoe
