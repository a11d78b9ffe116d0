# The shared library and its install tree: find_package(flashmoe CONFIG) gives target flashmoe::flashmoe.
include(CMakePackageConfigHelpers)
set(exports_map ${PROJECT_SOURCE_DIR}/src/exports.map)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/flashmoe)
# OpenBLAS lives in a folder of its own, so the loader must be told where.
cmake_path(GET FLASHMOE_OPENBLAS_LIBRARY PARENT_PATH openblas_dir)

add_library(flashmoe SHARED)
add_library(flashmoe::flashmoe ALIAS flashmoe)
target_link_libraries(flashmoe PRIVATE ${object_libraries})
target_include_directories(flashmoe INTERFACE
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<BUILD_INTERFACE:${generated_include_dir}>
  $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
target_compile_features(flashmoe INTERFACE cxx_std_20)
target_link_options(flashmoe PRIVATE LINKER:--version-script=${exports_map} LINKER:--no-undefined)
set_target_properties(flashmoe PROPERTIES LINK_DEPENDS ${exports_map})
if(SKBUILD)
  flashmoe_install_into_wheel(flashmoe)
  return()
endif()

set_target_properties(flashmoe PROPERTIES
  VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}
  INSTALL_RPATH ${openblas_dir})
install(TARGETS flashmoe EXPORT flashmoe-targets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/flashmoe ${generated_include_dir}/flashmoe
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT flashmoe-targets NAMESPACE flashmoe:: DESTINATION ${package_dir})
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/flashmoe-config.cmake.in
  ${PROJECT_BINARY_DIR}/flashmoe-config.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/flashmoe-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/flashmoe-config.cmake ${PROJECT_BINARY_DIR}/flashmoe-config-version.cmake
  DESTINATION ${package_dir})
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
