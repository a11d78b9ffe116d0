# Compiles through ccache where it is installed. Paths are cached relative to the checkout, so that presets with the
# same flags, and other checkouts, share what one of them compiled. The sloppiness is what precompiled headers need.
find_program(FLASHMOE_CCACHE ccache)
mark_as_advanced(FLASHMOE_CCACHE)
if(FLASHMOE_CCACHE)
  foreach(language C CXX CUDA)
    set(CMAKE_${language}_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1
      CCACHE_SLOPPINESS=pch_defines,time_macros ${FLASHMOE_CCACHE})
  endforeach()
endif()
