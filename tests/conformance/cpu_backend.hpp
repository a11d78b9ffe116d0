// The CPU backend for the typed suites.
#pragma once

#include <string>
#include <vector>

#include "support/cpu_world.hpp"

namespace flashmoe::test {

struct CpuBackend {
  using World = CpuWorld;
  static std::vector<DType> dtypes() { return {DType::bf16, DType::fp16, DType::tf32, DType::fp32, DType::fp64}; }
  static std::string why_not() { return {}; }
};

}  // namespace flashmoe::test
