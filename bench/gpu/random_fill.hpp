// Random elements made on the GPU: tensors of benchmarks are too large to come from the host.
#pragma once

#include <cstdint>

#include "flashmoe/types.hpp"

namespace flashmoe::bench {

/// Uniform reals in [-scale, scale) of dtype bf16 or fp16, a function of the seed and of the position.
void fill_random(DType dtype, void* data, std::int64_t count, std::uint64_t seed, float scale);

}  // namespace flashmoe::bench
