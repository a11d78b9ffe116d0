# One test is one file; its folder gives its label, its name gives the rest:
#   <folder>/<stem>_test.cpp|.cu   a gtest executable, ctest name <folder>.<stem>_test
#   <folder>/<stem>_test.sh        a script with FLASHMOE_SOURCE_DIR, FLASHMOE_BUILD_DIR and FLASHMOE_PROGRAM set
#   ..._slow_test.*                label `slow`, run on demand only: ctest --test-dir build/cpu --label-regex slow
# Exit code 77 means skipped, with the reason printed.
set(FLASHMOE_TEST_TIMEOUT 180 CACHE STRING "Seconds one test may take")
set(FLASHMOE_SLOW_TEST_TIMEOUT 3600 CACHE STRING "Seconds one slow test may take")

# flashmoe_add_test(FILE <path> LABELS <label>...)
function(flashmoe_add_test)
  cmake_parse_arguments(PARSE_ARGV 0 test "" "FILE" "LABELS")
  cmake_path(GET test_FILE STEM LAST_ONLY stem)
  cmake_path(GET test_FILE EXTENSION LAST_ONLY extension)
  cmake_path(GET test_FILE PARENT_PATH folder)
  cmake_path(GET folder FILENAME folder)
  set(name ${folder}.${stem})
  if(extension STREQUAL ".sh")
    add_test(NAME ${name} COMMAND sh ${test_FILE} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}/tests)
  else()
    set(target ${folder}_${stem})
    add_executable(${target} ${test_FILE})
    target_link_libraries(${target} PRIVATE flashmoe_test_support flashmoe_test_warnings)
    if(extension STREQUAL ".cpp")
      target_compile_options(${target} PRIVATE $<$<NOT:$<CONFIG:Debug>>:-O1>)
      target_precompile_headers(${target} REUSE_FROM flashmoe_test_support)
    endif()
    set_target_properties(${target} PROPERTIES CROSSCOMPILING_EMULATOR "${FLASHMOE_TEST_LAUNCHER}")
    add_test(NAME ${name} COMMAND ${target} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}/tests)
  endif()

  set(environment FLASHMOE_SOURCE_DIR=${PROJECT_SOURCE_DIR} FLASHMOE_BUILD_DIR=${PROJECT_BINARY_DIR})
  if(TARGET flashmoe_cli)
    list(APPEND environment FLASHMOE_PROGRAM=$<TARGET_FILE:flashmoe_cli>)
  endif()
  set(timeout ${FLASHMOE_TEST_TIMEOUT})
  if(stem MATCHES "_slow_test$")
    list(APPEND test_LABELS slow)
    set(timeout ${FLASHMOE_SLOW_TEST_TIMEOUT})
  endif()
  set_tests_properties(${name} PROPERTIES
    LABELS "${test_LABELS}" TIMEOUT ${timeout} SKIP_RETURN_CODE 77 ENVIRONMENT "${environment}")
endfunction()

# flashmoe_add_tests(FOLDER <name> EXTENSIONS <extension>... LABELS <label>...): all its files.
function(flashmoe_add_tests)
  cmake_parse_arguments(PARSE_ARGV 0 tests "" "FOLDER" "EXTENSIONS;LABELS")
  foreach(extension IN LISTS tests_EXTENSIONS)
    file(GLOB files CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${tests_FOLDER}/*_test.${extension})
    foreach(file IN LISTS files)
      flashmoe_add_test(FILE ${file} LABELS ${tests_LABELS})
    endforeach()
  endforeach()
endfunction()
