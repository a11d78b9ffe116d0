// The suite on the CPU backend.
#include "conformance/layer_suite.hpp"
#include "support/cpu_world.hpp"

namespace flashmoe::test {
namespace {

struct CpuBackend {
  using World = CpuWorld;
  static std::vector<DType> dtypes() { return {DType::bf16, DType::fp16, DType::tf32, DType::fp32, DType::fp64}; }
  static std::string why_not() { return {}; }
};

INSTANTIATE_TYPED_TEST_SUITE_P(Cpu, LayerSuite, CpuBackend);

}  // namespace
}  // namespace flashmoe::test
