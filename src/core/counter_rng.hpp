// Counter-based random numbers: value i of a stream is a pure function of (seed, stream, i), so any part of a
// tensor can be made anywhere, in any order, without the rest of it.
#pragma once

#include <cstdint>

namespace flashmoe {

/// Finaliser of splitmix64 (Steele, Lea, Flood 2014): a bijection of 64 bits whose outputs pass as random.
constexpr std::uint64_t mix64(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

class CounterRng {
 public:
  constexpr CounterRng(std::uint64_t seed, std::uint64_t stream)
      : key_(mix64(seed * 0x9e3779b97f4a7c15ull + 0x632be59bd9b4e019ull) ^ mix64(stream + 0x9e3779b97f4a7c15ull)) {}

  /// 64 random bits at `index`.
  constexpr std::uint64_t bits(std::uint64_t index) const { return mix64(key_ + index * 0x9e3779b97f4a7c15ull); }

  /// Uniform in [0, 1), 53 bits.
  constexpr double uniform(std::uint64_t index) const { return static_cast<double>(bits(index) >> 11) * 0x1p-53; }

  /// Uniform in [0, bound), bound >= 1. The bias is below bound / 2^64.
  constexpr std::uint64_t below(std::uint64_t index, std::uint64_t bound) const {
    __extension__ using Wide = unsigned __int128;
    return static_cast<std::uint64_t>((static_cast<Wide>(bits(index)) * bound) >> 64);
  }

 private:
  std::uint64_t key_;
};

}  // namespace flashmoe
