# flashmoe_openblas: OpenBLAS with its CBLAS header. The serial build is wanted: the emulator's ranks are threads
# already, and a threaded BLAS would oversubscribe the cores and sum in an order that depends on them.
set(arch ${CMAKE_LIBRARY_ARCHITECTURE})
find_library(FLASHMOE_OPENBLAS_LIBRARY openblas PATHS /usr/lib/${arch}/openblas-serial NO_DEFAULT_PATH)
find_path(FLASHMOE_OPENBLAS_INCLUDE_DIR cblas.h PATHS /usr/include/${arch}/openblas-serial NO_DEFAULT_PATH)
if(NOT FLASHMOE_OPENBLAS_LIBRARY OR NOT FLASHMOE_OPENBLAS_INCLUDE_DIR)
  find_library(FLASHMOE_OPENBLAS_LIBRARY openblas)
  find_path(FLASHMOE_OPENBLAS_INCLUDE_DIR cblas.h PATH_SUFFIXES openblas ${arch})
endif()
if(NOT FLASHMOE_OPENBLAS_LIBRARY OR NOT FLASHMOE_OPENBLAS_INCLUDE_DIR)
  message(FATAL_ERROR "OpenBLAS with cblas.h was not found; install libopenblas-serial-dev ('make bootstrap' does), "
    "or set FLASHMOE_OPENBLAS_LIBRARY and FLASHMOE_OPENBLAS_INCLUDE_DIR.")
endif()
add_library(flashmoe_openblas INTERFACE)
target_include_directories(flashmoe_openblas SYSTEM INTERFACE ${FLASHMOE_OPENBLAS_INCLUDE_DIR})
target_link_libraries(flashmoe_openblas INTERFACE ${FLASHMOE_OPENBLAS_LIBRARY})
