// Made-up numbers for runs without a model: every value is a pure function of a seed and its position, so it does not
// depend on the number of ranks, the order of making or what else is made.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/counter_rng.hpp"
#include "flashmoe/types.hpp"

namespace flashmoe {

/// uniform: reals of variance 1 (tokens) or about 1 / fan-in (weights), so that activations stay of order 1.
/// small_integers: tokens and biases in -2..2, weights in -1..1 (three of four are 0). With an activation that keeps
/// integers (relu, relu_squared, identity) every sum of a layer of moderate size is exact in fp32, so the result's
/// bits do not depend on the order of summation.
enum class ValueSet : std::uint8_t { uniform, small_integers };

/// What a stream of random numbers is for; each (kind, index) is a stream of its own.
enum class Stream : std::uint8_t { up, down, up_bias, down_bias, token, routing, expert_order };

constexpr CounterRng stream(std::uint64_t seed, Stream kind, std::uint64_t index) {
  return {seed, (static_cast<std::uint64_t>(kind) << 56) | index};
}

/// Fills `count` elements of `dtype`. Value i of `rng` is (k + 1/2) * scale / 2^15 with k its 16 random bits as a signed
/// integer: uniform in (-scale, scale), symmetric, never 0. Types share the values up to their rounding; fp64 ones
/// are no fp32 values, so that an engine cannot pass for fp64 by way of fp32.
void fill_uniform(DType dtype, const CounterRng& rng, double scale, std::int64_t count, void* out);

/// Fills `count` elements with integers in -bound..bound; bound 1 or 2. Bound 2: all five equally likely.
/// Bound 1: 0 with probability 3/4.
void fill_integers(DType dtype, const CounterRng& rng, int bound, std::int64_t count, void* out);

/// Tokens first_token..first_token + num_tokens - 1 of the batch that `seed` stands for, whichever ranks they are on:
/// [num_tokens][hidden] of `dtype`, of mean 0 and variance 1 (or small integers).
std::vector<std::byte> generate_tokens(DType dtype, std::uint64_t seed, std::int64_t first_token,
                                       std::int64_t num_tokens, int hidden, ValueSet values = ValueSet::uniform);

}  // namespace flashmoe
