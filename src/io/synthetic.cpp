#include "io/synthetic.hpp"

#include <algorithm>
#include <cmath>

#include "core/numeric.hpp"

namespace flashmoe {
namespace {

constexpr int kLanes = 4;  // 16-bit lanes of one random word

// out[i] = value(16 random bits), stored; one word serves four neighbours.
template <class Stored, class Value>
void fill_lanes(const CounterRng& rng, std::int64_t count, void* out, Value value) {
  auto* target = static_cast<Stored*>(out);
  for (std::int64_t first = 0; first < count; first += kLanes) {
    const std::uint64_t bits = rng.bits(static_cast<std::uint64_t>(first / kLanes));
    const std::int64_t lanes = std::min<std::int64_t>(kLanes, count - first);
    for (std::int64_t lane = 0; lane < lanes; ++lane) {
      target[first + lane] = value(static_cast<std::uint16_t>(bits >> (16 * lane)));
    }
  }
}

// Value<T>, T float or double, makes a number from 16 bits; every type but fp64 is rounded from fp32.
template <template <class> class Value>
void fill(DType dtype, const CounterRng& rng, double parameter, std::int64_t count, void* out) {
  const Value<float> value{static_cast<float>(parameter)};
  switch (dtype) {
    case DType::bf16:
      return fill_lanes<std::uint16_t>(rng, count, out, [&](std::uint16_t bits) { return float_to_bf16(value(bits)); });
    case DType::fp16:
      return fill_lanes<std::uint16_t>(rng, count, out, [&](std::uint16_t bits) { return float_to_fp16(value(bits)); });
    case DType::tf32:
    case DType::fp32: return fill_lanes<float>(rng, count, out, value);
    case DType::fp64: return fill_lanes<double>(rng, count, out, Value<double>{parameter});
  }
}

template <class T>
struct Uniform {
  T step;
  T operator()(std::uint16_t bits) const {
    return (static_cast<T>(static_cast<std::int16_t>(bits)) + T(0.5)) * step;
  }
};

template <class T>
struct SmallInteger {
  T bound;
  T operator()(std::uint16_t bits) const {
    if (bound == T(2)) return static_cast<T>(bits * 5 / 65536 - 2);
    return bits % 8 == 0 ? T(-1) : bits % 8 == 1 ? T(1) : T(0);
  }
};

}  // namespace

void fill_uniform(DType dtype, const CounterRng& rng, double scale, std::int64_t count, void* out) {
  fill<Uniform>(dtype, rng, scale * 0x1p-15, count, out);
}

void fill_integers(DType dtype, const CounterRng& rng, int bound, std::int64_t count, void* out) {
  fill<SmallInteger>(dtype, rng, bound, count, out);
}

std::vector<std::byte> generate_tokens(DType dtype, std::uint64_t seed, std::int64_t first_token,
                                       std::int64_t num_tokens, int hidden, ValueSet values) {
  const std::size_t row_bytes = static_cast<std::size_t>(hidden) * dtype_bytes(dtype);
  std::vector<std::byte> tokens(static_cast<std::size_t>(num_tokens) * row_bytes);
  for (std::int64_t token = 0; token < num_tokens; ++token) {
    const CounterRng rng = stream(seed, Stream::token, static_cast<std::uint64_t>(first_token + token));
    std::byte* row = tokens.data() + static_cast<std::size_t>(token) * row_bytes;
    if (values == ValueSet::small_integers) {
      fill_integers(dtype, rng, 2, hidden, row);
    } else {
      fill_uniform(dtype, rng, std::sqrt(3.0), hidden, row);
    }
  }
  return tokens;
}

}  // namespace flashmoe
