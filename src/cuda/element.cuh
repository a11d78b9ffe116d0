// Element types on the GPU: 16 bytes of them at a time, and what accumulates them.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "flashmoe/types.hpp"

namespace flashmoe::cuda_backend {

template <DType dtype>
struct Element;

template <>
struct Element<DType::bf16> {
  using Stored = __nv_bfloat16;
  using Accumulator = float;
  __device__ static float widen(Stored value) { return __bfloat162float(value); }
  __device__ static Stored round(float value) { return __float2bfloat16_rn(value); }
};
template <>
struct Element<DType::fp16> {
  using Stored = __half;
  using Accumulator = float;
  __device__ static float widen(Stored value) { return __half2float(value); }
  __device__ static Stored round(float value) { return __float2half_rn(value); }
};
template <>
struct Element<DType::tf32> {
  using Stored = float;
  using Accumulator = float;
  __device__ static float widen(Stored value) { return value; }
  __device__ static Stored round(float value) { return value; }
};
template <>
struct Element<DType::fp64> {
  using Stored = double;
  using Accumulator = double;
  __device__ static double widen(Stored value) { return value; }
  __device__ static Stored round(double value) { return value; }
};

/// 16 bytes of elements.
template <DType dtype>
union Packet {
  static constexpr int kElements = 16 / static_cast<int>(sizeof(typename Element<dtype>::Stored));
  uint4 bits;
  typename Element<dtype>::Stored elements[kElements];
  __device__ Packet() : bits(make_uint4(0, 0, 0, 0)) {}
};

}  // namespace flashmoe::cuda_backend
