# flashmoe_openblas: OpenBLAS with its CBLAS header. The pthread build is wanted: its buffers are safe to use from
# several threads (the ranks are threads), which those of Debian's serial build are not. The library keeps it to one
# thread a call (src/cpu/gemm.cpp). Debian keeps it beside the others, so it is asked for by folder, not through the
# alternatives.
set(multiarch ${CMAKE_LIBRARY_ARCHITECTURE})
find_library(FLASHMOE_OPENBLAS_LIBRARY openblas PATHS /usr/lib/${multiarch}/openblas-pthread NO_DEFAULT_PATH)
find_path(FLASHMOE_OPENBLAS_INCLUDE_DIR cblas.h PATHS /usr/include/${multiarch}/openblas-pthread NO_DEFAULT_PATH)
if(NOT FLASHMOE_OPENBLAS_LIBRARY OR NOT FLASHMOE_OPENBLAS_INCLUDE_DIR)
  find_library(FLASHMOE_OPENBLAS_LIBRARY openblas)
  find_path(FLASHMOE_OPENBLAS_INCLUDE_DIR cblas.h PATH_SUFFIXES openblas)
endif()
if(NOT FLASHMOE_OPENBLAS_LIBRARY OR NOT FLASHMOE_OPENBLAS_INCLUDE_DIR)
  message(FATAL_ERROR "OpenBLAS with cblas.h was not found; install libopenblas-pthread-dev ('make bootstrap' does), "
    "or set FLASHMOE_OPENBLAS_LIBRARY and FLASHMOE_OPENBLAS_INCLUDE_DIR.")
endif()

# The library itself says which build it is.
if(NOT DEFINED FLASHMOE_OPENBLAS_CONFIG)
  file(WRITE ${CMAKE_BINARY_DIR}/CMakeFiles/openblas_config.c
    "#include <cblas.h>\n#include <stdio.h>\n"
    "int main(void) { puts(openblas_get_config()); return openblas_get_parallel(); }\n")
  try_run(FLASHMOE_OPENBLAS_PARALLEL openblas_compiles
    ${CMAKE_BINARY_DIR}/CMakeFiles ${CMAKE_BINARY_DIR}/CMakeFiles/openblas_config.c
    CMAKE_FLAGS -DINCLUDE_DIRECTORIES=${FLASHMOE_OPENBLAS_INCLUDE_DIR}
    COMPILE_DEFINITIONS ${FLASHMOE_OPENBLAS_DEFINITIONS}
    LINK_LIBRARIES ${FLASHMOE_OPENBLAS_LIBRARY}
    COMPILE_OUTPUT_VARIABLE compile_output
    RUN_OUTPUT_VARIABLE config)
  if(NOT openblas_compiles OR FLASHMOE_OPENBLAS_PARALLEL STREQUAL "FAILED_TO_RUN")
    message(FATAL_ERROR "${FLASHMOE_OPENBLAS_LIBRARY} does not work as OpenBLAS:\n${compile_output}${config}")
  endif()
  string(STRIP "${config}" config)
  set(FLASHMOE_OPENBLAS_CONFIG "${config}" CACHE INTERNAL "What openblas_get_config() says")
endif()
if(FLASHMOE_OPENBLAS_PARALLEL EQUAL 0)
  set(kind "serial (tiles of different ranks will wait for each other)")
else()
  set(kind threaded)
endif()
message(STATUS "OpenBLAS: ${kind}, ${FLASHMOE_OPENBLAS_LIBRARY} (${FLASHMOE_OPENBLAS_CONFIG})")

add_library(flashmoe_openblas INTERFACE)
target_include_directories(flashmoe_openblas SYSTEM INTERFACE ${FLASHMOE_OPENBLAS_INCLUDE_DIR})
target_link_libraries(flashmoe_openblas INTERFACE ${FLASHMOE_OPENBLAS_LIBRARY})
target_compile_definitions(flashmoe_openblas INTERFACE ${FLASHMOE_OPENBLAS_DEFINITIONS})
