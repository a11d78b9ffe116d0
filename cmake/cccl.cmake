# flashmoe_cccl: libcu++ headers (cuda/atomic, cuda/std/mdspan), which g++ compiles without a CUDA toolkit.
# Taken from a toolkit's include/cccl, else from the wheel in the project's .venv/tools.
file(GLOB wheel_include_dirs ${PROJECT_SOURCE_DIR}/.venv/tools/lib/python3*/site-packages/nvidia/cu13/include/cccl)
find_path(FLASHMOE_CCCL_INCLUDE_DIR cuda/atomic
  HINTS ENV CUDA_PATH ENV CUDA_HOME
  PATHS /usr/local/cuda ${wheel_include_dirs}
  PATH_SUFFIXES include/cccl include
  NO_CMAKE_SYSTEM_PATH)
if(NOT FLASHMOE_CCCL_INCLUDE_DIR)
  message(FATAL_ERROR "libcu++ headers (cuda/atomic) are in no CUDA toolkit >= 13.0 and not in .venv/tools; "
    "run 'make bootstrap', or set FLASHMOE_CCCL_INCLUDE_DIR to the folder that holds cuda/atomic.")
endif()
add_library(flashmoe_cccl INTERFACE)
target_include_directories(flashmoe_cccl SYSTEM INTERFACE ${FLASHMOE_CCCL_INCLUDE_DIR})
