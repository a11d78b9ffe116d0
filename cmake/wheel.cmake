# What a build of the Python wheel (pyproject.toml) does otherwise: libraries come from PyPI packages, not from Debian's,
# and what is installed is the package's one shared library with the OpenBLAS it uses.
set(FLASHMOE_CLI OFF)
set(FLASHMOE_TESTS OFF)

# The CUDA backend where there are a GPU and a toolkit, unless -C cmake.define.FLASHMOE_CUDA=ON|OFF says.
if(NOT DEFINED FLASHMOE_CUDA)
  include(cuda_root)
  set(FLASHMOE_CUDA OFF)
  if(FLASHMOE_CUDA_ROOT AND EXISTS /dev/nvidiactl)
    set(FLASHMOE_CUDA ON)
  endif()
endif()
message(STATUS "Wheel with the CUDA backend: ${FLASHMOE_CUDA}")

# The build environment's site-packages are on CMAKE_PREFIX_PATH.
function(flashmoe_find_package_header variable header suffix package)
  find_path(${variable} ${header} PATH_SUFFIXES ${suffix})
  if(NOT ${variable})
    message(FATAL_ERROR "${header} was not found: install the build requirements of pyproject.toml (${package}), or let "
      "pip build in an environment of its own.")
  endif()
  mark_as_advanced(${variable})
endfunction()

flashmoe_find_package_header(FLASHMOE_FMT_INCLUDE_DIR fmt/format.h cmeel.prefix/include cmeel-fmt)
add_library(fmt::fmt INTERFACE IMPORTED)
target_include_directories(fmt::fmt INTERFACE ${FLASHMOE_FMT_INCLUDE_DIR})
target_compile_definitions(fmt::fmt INTERFACE FMT_HEADER_ONLY)

flashmoe_find_package_header(FLASHMOE_JSON_INCLUDE_DIR nlohmann/json.hpp nlohmann_json/include nlohmann-json)
add_library(nlohmann_json::nlohmann_json INTERFACE IMPORTED)
target_include_directories(nlohmann_json::nlohmann_json INTERFACE ${FLASHMOE_JSON_INCLUDE_DIR})

flashmoe_find_package_header(FLASHMOE_CCCL_INCLUDE_DIR cuda/atomic nvidia/cu13/include/cccl nvidia-cuda-cccl)

# That build of OpenBLAS has a prefix on every name, so that it never meets another one in the process.
flashmoe_find_package_header(FLASHMOE_OPENBLAS_INCLUDE_DIR cblas.h scipy_openblas32/include scipy-openblas32)
cmake_path(GET FLASHMOE_OPENBLAS_INCLUDE_DIR PARENT_PATH openblas_root)
set(FLASHMOE_OPENBLAS_LIBRARY ${openblas_root}/lib/libscipy_openblas.so)
foreach(name cblas_sgemm cblas_dgemm openblas_get_config openblas_get_parallel openblas_set_num_threads)
  list(APPEND FLASHMOE_OPENBLAS_DEFINITIONS -D${name}=scipy_${name})
endforeach()

# Installs the shared library beside OpenBLAS, without links, which a wheel cannot hold.
function(flashmoe_install_into_wheel target)
  file(GLOB openblas_license ${openblas_root}-*.dist-info/licenses/LICENSE.txt)
  set_target_properties(${target} PROPERTIES INSTALL_RPATH "$ORIGIN")
  target_link_options(${target} PRIVATE -static-libstdc++ -static-libgcc LINKER:--strip-debug)
  install(TARGETS ${target} LIBRARY DESTINATION flashmoe/lib)
  install(FILES ${FLASHMOE_OPENBLAS_LIBRARY} DESTINATION flashmoe/lib)
  install(FILES ${openblas_license} DESTINATION flashmoe/lib RENAME LICENSE.openblas.txt)
endfunction()
