// The suite on the CPU backend.
#include "conformance/cpu_backend.hpp"
#include "conformance/layer_suite.hpp"

namespace flashmoe::test {

INSTANTIATE_TYPED_TEST_SUITE_P(Cpu, LayerSuite, CpuBackend);

}  // namespace flashmoe::test
