// Annotations for code compiled by both g++ and nvcc.
#pragma once

#if defined(__CUDACC__)
#define FLASHMOE_HD __host__ __device__
#else
#define FLASHMOE_HD
#endif

/// Before a loop: unrolled on the GPU, or never. nvcc's host compiler does not know the pragma. What runs once or twice a
/// call is not unrolled: a GPU fetches code that it has not run for about 10 ns an instruction.
#if defined(__CUDA_ARCH__)
#define FLASHMOE_UNROLL _Pragma("unroll")
#define FLASHMOE_ROLLED _Pragma("unroll 1")
#else
#define FLASHMOE_UNROLL
#define FLASHMOE_ROLLED
#endif
