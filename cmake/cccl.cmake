# flashmoe_cccl: libcu++ headers (cuda/atomic, cuda/std/mdspan), which g++ compiles without a GPU or nvcc.
include(cuda_root)
find_path(FLASHMOE_CCCL_INCLUDE_DIR cuda/atomic HINTS ${FLASHMOE_CUDA_ROOT}/include/cccl)
if(NOT FLASHMOE_CCCL_INCLUDE_DIR)
  message(FATAL_ERROR "libcu++ headers (cuda/atomic) are in no CUDA toolkit >= 13.0 and not in .venv/tools; "
    "run 'make bootstrap', or set FLASHMOE_CCCL_INCLUDE_DIR to the folder that holds cuda/atomic.")
endif()
add_library(flashmoe_cccl INTERFACE)
target_include_directories(flashmoe_cccl SYSTEM INTERFACE ${FLASHMOE_CCCL_INCLUDE_DIR})
