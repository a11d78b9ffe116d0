# Compiles through ccache where it is installed.
find_program(FLASHMOE_CCACHE ccache)
mark_as_advanced(FLASHMOE_CCACHE)
if(FLASHMOE_CCACHE)
  foreach(language C CXX CUDA)
    set(CMAKE_${language}_COMPILER_LAUNCHER ${FLASHMOE_CCACHE})
  endforeach()
endif()
