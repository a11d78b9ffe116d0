# The warnings of the project's own code: flashmoe_warnings for the library and the programs, flashmoe_test_warnings for tests.
# Linked PRIVATE; other people's headers come in as SYSTEM and stay silent. All of them are errors, but where a wheel is
# built, which must not fail for what another compiler warns of.
add_library(flashmoe_test_warnings INTERFACE)
target_compile_options(flashmoe_test_warnings INTERFACE "$<$<COMPILE_LANGUAGE:C,CXX>:-Wall;-Wextra;-Wpedantic>")
# The host code that nvcc writes is not pedantic (line directives).
target_compile_options(flashmoe_test_warnings INTERFACE $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra>)
if(NOT SKBUILD)
  target_compile_options(flashmoe_test_warnings INTERFACE
    $<$<COMPILE_LANGUAGE:C,CXX>:-Werror> "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Werror;-Werror=all-warnings>")
endif()

# Not for tests: gtest's INSTANTIATE_TEST_SUITE_P has a parameter `info`, which every name generator shadows.
add_library(flashmoe_warnings INTERFACE)
target_link_libraries(flashmoe_warnings INTERFACE flashmoe_test_warnings)
target_compile_options(flashmoe_warnings INTERFACE
  $<$<COMPILE_LANGUAGE:C,CXX>:-Wshadow> $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wshadow>)
