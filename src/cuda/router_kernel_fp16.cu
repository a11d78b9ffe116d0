#include "cuda/router_kernel.cuh"

namespace flashmoe::cuda_backend {

RouterVariants router_variants_fp16() { return make_router_variants<DType::fp16>(); }

}  // namespace flashmoe::cuda_backend
