#include "cuda/router_kernel.cuh"

namespace flashmoe::cuda_backend {

RouterVariants router_variants_fp32() { return make_router_variants<DType::fp32>(); }

}  // namespace flashmoe::cuda_backend
