#include "core/numeric.hpp"

#include <type_traits>

namespace flashmoe {
namespace {

template <class Stored, class Out, class Convert>
void convert_each(const void* data, std::int64_t count, Out* out, Convert convert) {
  const auto* source = static_cast<const Stored*>(data);
  if constexpr (std::is_same_v<Stored, Out>) {
    if (count > 0) std::memcpy(out, source, static_cast<std::size_t>(count) * sizeof(Out));
  } else {
    for (std::int64_t i = 0; i < count; ++i) out[i] = convert(source[i]);
  }
}

template <class Out>
void load_as(DType dtype, const void* data, std::int64_t count, Out* out) {
  const auto cast = [](auto value) { return static_cast<Out>(value); };
  switch (dtype) {
    case DType::bf16: convert_each<std::uint16_t>(data, count, out, bf16_to_float); break;
    case DType::fp16: convert_each<std::uint16_t>(data, count, out, fp16_to_float); break;
    case DType::tf32:
    case DType::fp32: convert_each<float>(data, count, out, cast); break;
    case DType::fp64: convert_each<double>(data, count, out, cast); break;
  }
}

}  // namespace

void load_doubles(DType dtype, const void* data, std::int64_t count, double* out) { load_as(dtype, data, count, out); }

void load_floats(DType dtype, const void* data, std::int64_t count, float* out) { load_as(dtype, data, count, out); }

void store_floats(DType dtype, const float* values, std::int64_t count, void* out) {
  const auto widen = [](float value) { return static_cast<double>(value); };
  switch (dtype) {
    case DType::bf16: convert_each<float>(values, count, static_cast<std::uint16_t*>(out), float_to_bf16); break;
    case DType::fp16: convert_each<float>(values, count, static_cast<std::uint16_t*>(out), float_to_fp16); break;
    case DType::tf32:
    case DType::fp32: convert_each<float>(values, count, static_cast<float*>(out), widen); break;
    case DType::fp64: convert_each<float>(values, count, static_cast<double*>(out), widen); break;
  }
}

}  // namespace flashmoe
