# Language CUDA with the nvcc of FLASHMOE_CUDA_ROOT: machine code for sm_80 and sm_90a, and PTX of sm_80 for
# every later GPU.
include(cuda_root)
if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  if(NOT FLASHMOE_CUDA_ROOT)
    message(FATAL_ERROR "FLASHMOE_CUDA needs a CUDA toolkit >= 13.0 and found none; run 'make bootstrap', "
      "or set CMAKE_CUDA_COMPILER to its nvcc.")
  endif()
  set(CMAKE_CUDA_COMPILER ${FLASHMOE_CUDA_ROOT}/bin/nvcc)
endif()
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80 90a-real)
endif()
enable_language(CUDA)
# CMake before 3.26 does not know that nvcc >= 12 takes C++20.
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
endif()
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)
if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 13.0)
  message(FATAL_ERROR "The CUDA backend needs nvcc >= 13.0, but ${CMAKE_CUDA_COMPILER} is ${CMAKE_CUDA_COMPILER_VERSION}.")
endif()

# flashmoe_cudart: the CUDA runtime, static, with its headers for sources that g++ compiles. (FindCUDAToolkit of
# CMake 3.25 fails on a toolkit without the profiler's libraries, such as the wheels.)
find_library(FLASHMOE_CUDART_LIBRARY cudart_static REQUIRED
  HINTS ${CMAKE_CUDA_IMPLICIT_LINK_DIRECTORIES} ${FLASHMOE_CUDA_ROOT}/lib64)
find_package(Threads REQUIRED)
add_library(flashmoe_cudart INTERFACE)
target_include_directories(flashmoe_cudart SYSTEM INTERFACE ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES})
target_link_libraries(flashmoe_cudart INTERFACE ${FLASHMOE_CUDART_LIBRARY} Threads::Threads rt dl)
