// The suite of a layer on the CUDA backend.
#include "conformance/layer_suite.hpp"
#include "cuda_backend.hpp"

namespace flashmoe::test {

INSTANTIATE_TYPED_TEST_SUITE_P(Cuda, LayerSuite, CudaBackend);

}  // namespace flashmoe::test
