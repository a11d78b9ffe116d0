# FLASHMOE_CUDA_ROOT: the CUDA toolkit of this build, empty when there is none. Chosen by tools/cuda_root.sh.
if(NOT FLASHMOE_CUDA_ROOT)
  execute_process(COMMAND ${PROJECT_SOURCE_DIR}/tools/cuda_root.sh
    OUTPUT_VARIABLE cuda_root OUTPUT_STRIP_TRAILING_WHITESPACE)
  set(FLASHMOE_CUDA_ROOT "${cuda_root}" CACHE PATH "Root folder of the CUDA toolkit" FORCE)
  message(STATUS "CUDA toolkit: ${FLASHMOE_CUDA_ROOT}")
endif()
