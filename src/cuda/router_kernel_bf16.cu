#include "cuda/router_kernel.cuh"

namespace flashmoe::cuda_backend {

RouterVariants router_variants_bf16() { return make_router_variants<DType::bf16>(); }

}  // namespace flashmoe::cuda_backend
