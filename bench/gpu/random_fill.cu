#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "random_fill.hpp"

namespace flashmoe::bench {

namespace {

template <class T>
__global__ void fill(T* data, std::int64_t count, std::uint64_t seed, float scale) {
  const std::int64_t stride = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    // splitmix64 of the position
    std::uint64_t bits = seed * 0x9e3779b97f4a7c15ull + static_cast<std::uint64_t>(i) * 0xbf58476d1ce4e5b9ull;
    bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9ull;
    bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebull;
    bits ^= bits >> 31;
    data[i] = static_cast<T>((static_cast<float>(bits >> 40) * 0x1p-23f - 1.0f) * scale);
  }
}

}  // namespace

void fill_random(DType dtype, void* data, std::int64_t count, std::uint64_t seed, float scale) {
  if (dtype == DType::bf16) {
    fill<<<1024, 256>>>(static_cast<__nv_bfloat16*>(data), count, seed, scale);
  } else {
    fill<<<1024, 256>>>(static_cast<__half*>(data), count, seed, scale);
  }
}

}  // namespace flashmoe::bench
