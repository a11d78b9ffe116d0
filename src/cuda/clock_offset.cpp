#include "cuda/clock_offset.hpp"

#include <chrono>
#include <cuda/atomic>
#include <limits>

#include "cuda/check.hpp"
#include "cuda/clock_exchange.hpp"
#include "cuda/memory.hpp"

namespace flashmoe::cuda_backend {

namespace {

using Word = cuda::atomic_ref<std::uint64_t, cuda::thread_scope_system>;

std::int64_t host_ns() {
  const auto since_epoch = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(since_epoch).count();
}

}  // namespace

std::int64_t clock_offset_ns(int device) {
  const DeviceGuard guard(device);
  const PinnedHost<ClockExchange> exchange;
  ClockExchange& words = *exchange.get();
  check(launch_clock_answers(&words, cudaStreamPerThread), "launch_clock_answers");
  std::int64_t shortest = std::numeric_limits<std::int64_t>::max();
  std::int64_t offset = 0;
  for (std::uint64_t round = 1; round <= ClockExchange::kRounds; ++round) {
    const std::int64_t before = host_ns();
    Word(words.asked).store(round, cuda::memory_order_release);
    while (Word(words.answered).load(cuda::memory_order_acquire) < round) {
      if (host_ns() - before > 2 * static_cast<std::int64_t>(ClockExchange::kPatienceNs)) {
        check(cudaStreamSynchronize(cudaStreamPerThread), "cudaStreamSynchronize");
        throw CudaError(
            fmt::format("GPU {} must answer within 2 s what time it is, and did not: check nvidia-smi for other "
                        "work on it",
                        device));
      }
    }
    const std::int64_t after = host_ns();
    if (after - before < shortest) {
      shortest = after - before;
      offset = before + shortest / 2 - static_cast<std::int64_t>(words.time_ns);
    }
  }
  check(cudaStreamSynchronize(cudaStreamPerThread), "cudaStreamSynchronize");
  return offset;
}

}  // namespace flashmoe::cuda_backend
