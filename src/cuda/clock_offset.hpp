// How a GPU's clock stands against the host's.
#pragma once

#include <cstdint>

namespace flashmoe::cuda_backend {

/// What must be added to the device's %globaltimer to get std::chrono::steady_clock, ns, so that timelines of several
/// GPUs share a clock. From the fastest of some question-and-answer rounds; right within half of such a round, about
/// 1 us. Launches a kernel of one thread and waits for it. Throws CudaError.
std::int64_t clock_offset_ns(int device);

}  // namespace flashmoe::cuda_backend
