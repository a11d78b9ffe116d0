// Random choices of a test, drawn in sequence from one seed.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "core/counter_rng.hpp"

namespace flashmoe::test {

class Dice {
 public:
  explicit Dice(std::uint64_t seed) : rng_(seed, 99) {}

  /// 0..bound-1.
  int below(int bound) { return static_cast<int>(rng_.below(num_draws_++, static_cast<std::uint64_t>(bound))); }
  int between(int low, int high) { return low + below(high - low + 1); }
  bool one_in(int count) { return below(count) == 0; }
  template <class T>
  T pick(std::initializer_list<T> options) {
    return options.begin()[below(static_cast<int>(options.size()))];
  }

 private:
  CounterRng rng_;
  std::uint64_t num_draws_ = 0;
};

}  // namespace flashmoe::test
