// Conversions between the stored element types and the types arithmetic runs in.
// Every narrowing rounds to nearest, ties to even, except tf32 operands (ties away, as cvt.rna.tf32 does).
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "flashmoe/types.hpp"

namespace flashmoe {

inline float bf16_to_float(std::uint16_t bits) { return std::bit_cast<float>(std::uint32_t{bits} << 16); }

inline std::uint16_t float_to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x0040u);  // NaN stays NaN
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

inline float fp16_to_float(std::uint16_t half) {
  const std::uint32_t sign = std::uint32_t{half & 0x8000u} << 16;
  const std::uint32_t exponent = (half >> 10) & 0x1fu;
  const std::uint32_t mantissa = half & 0x3ffu;
  if (exponent == 0x1fu) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24, exact in fp32
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return sign ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (mantissa << 13));
}

inline std::uint16_t float_to_fp16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<std::uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return static_cast<std::uint16_t>(sign | 0x7c00u);  // rounds past 65504
  if (magnitude < 0x38800000u) {  // subnormal in fp16: let fp32 addition round at bit 2^-24
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000u));
  }
  const std::uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<std::uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

/// fp32 value with the 10-bit mantissa of tf32: round to nearest, ties away from zero.
inline float round_to_tf32(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7f800000u) == 0x7f800000u) return value;
  return std::bit_cast<float>((bits + 0x1000u) & 0xffffe000u);
}

/// Element `index` of a stored array, widened without loss.
inline double load_element(DType dtype, const void* data, std::int64_t index) {
  switch (dtype) {
    case DType::bf16: return bf16_to_float(static_cast<const std::uint16_t*>(data)[index]);
    case DType::fp16: return fp16_to_float(static_cast<const std::uint16_t*>(data)[index]);
    case DType::tf32:
    case DType::fp32: return static_cast<const float*>(data)[index];
    case DType::fp64: return static_cast<const double*>(data)[index];
  }
  return 0.0;
}

/// Stores `value` as element `index`, rounded once to the stored type. Values for bf16 and fp16
/// come from fp32 accumulators; a double that is no fp32 value is rounded to fp32 first.
inline void store_element(DType dtype, void* data, std::int64_t index, double value) {
  switch (dtype) {
    case DType::bf16: static_cast<std::uint16_t*>(data)[index] = float_to_bf16(static_cast<float>(value)); break;
    case DType::fp16: static_cast<std::uint16_t*>(data)[index] = float_to_fp16(static_cast<float>(value)); break;
    case DType::tf32:
    case DType::fp32: static_cast<float*>(data)[index] = static_cast<float>(value); break;
    case DType::fp64: static_cast<double*>(data)[index] = value; break;
  }
}

/// `count` stored elements widened to fp64, without loss.
void load_doubles(DType dtype, const void* data, std::int64_t count, double* out);

/// `count` stored elements widened to fp32 (fp64 narrows).
void load_floats(DType dtype, const void* data, std::int64_t count, float* out);

/// `count` fp32 values rounded once to the stored type (tf32 is stored as fp32; fp64 widens).
void store_floats(DType dtype, const float* values, std::int64_t count, void* out);

}  // namespace flashmoe
