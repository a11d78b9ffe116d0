// Rounds in which the host asks a GPU for its time, through words in pinned host memory.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace flashmoe::cuda_backend {

struct ClockExchange {
  static constexpr std::uint64_t kRounds = 64;
  static constexpr std::uint64_t kPatienceNs = 1'000'000'000;

  std::uint64_t asked;     ///< round, from 1; the host's
  std::uint64_t answered;  ///< likewise, the GPU's; publishes time_ns
  std::uint64_t time_ns;   ///< of the GPU's clock, when it saw the question
};

/// A kernel of one thread that answers every round; it leaves when a question does not come within the patience.
cudaError_t launch_clock_answers(ClockExchange* exchange, cudaStream_t stream);

}  // namespace flashmoe::cuda_backend
