// Function annotation for code compiled by both g++ and nvcc.
#pragma once

#if defined(__CUDACC__)
#define FLASHMOE_HD __host__ __device__
#define FLASHMOE_UNROLL _Pragma("unroll")
#else
#define FLASHMOE_HD
#define FLASHMOE_UNROLL
#endif
