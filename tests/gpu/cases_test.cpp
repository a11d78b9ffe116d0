// Reported failures (see conformance/cases.hpp) on the CUDA backend.
#include "conformance/precision_cases.hpp"
#include "conformance/rank_cases.hpp"
#include "conformance/repeat_cases.hpp"
#include "conformance/shape_cases.hpp"
#include "cuda_backend.hpp"

namespace flashmoe::test {

INSTANTIATE_TYPED_TEST_SUITE_P(Cuda, RankCases, CudaBackend);
INSTANTIATE_TYPED_TEST_SUITE_P(Cuda, ShapeCases, CudaBackend);
INSTANTIATE_TYPED_TEST_SUITE_P(Cuda, RepeatCases, CudaBackend);
INSTANTIATE_TYPED_TEST_SUITE_P(Cuda, PrecisionCases, CudaBackend);

}  // namespace flashmoe::test
