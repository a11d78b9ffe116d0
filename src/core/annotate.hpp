// Annotations for code compiled by both g++ and nvcc.
#pragma once

#if defined(__CUDACC__)
#define FLASHMOE_HD __host__ __device__
#else
#define FLASHMOE_HD
#endif

/// Before a loop: unrolled on the GPU. nvcc's host compiler does not know the pragma.
#if defined(__CUDA_ARCH__)
#define FLASHMOE_UNROLL _Pragma("unroll")
#else
#define FLASHMOE_UNROLL
#endif
