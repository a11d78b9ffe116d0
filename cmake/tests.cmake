# flashmoe_add_test(FILE <path> LABELS <label>... [TIMEOUT <seconds>]): one gtest executable of one source file,
# in ctest as <folder>.<stem> of the file, linked with every internal of the library.
function(flashmoe_add_test)
  cmake_parse_arguments(PARSE_ARGV 0 test "" "FILE;TIMEOUT" "LABELS")
  cmake_path(GET test_FILE STEM stem)
  cmake_path(GET test_FILE PARENT_PATH folder)
  cmake_path(GET folder FILENAME folder)
  set(target ${folder}_${stem})
  add_executable(${target} ${test_FILE})
  target_link_libraries(${target} PRIVATE flashmoe_internal flashmoe_warnings rapidcheck
    GTest::gmock GTest::gtest GTest::gtest_main)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  add_test(NAME ${folder}.${stem} COMMAND ${target} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}/tests)
  if(NOT test_TIMEOUT)
    set(test_TIMEOUT 120)
  endif()
  set_tests_properties(${folder}.${stem} PROPERTIES LABELS "${test_LABELS}" TIMEOUT ${test_TIMEOUT})
endfunction()
