# Writes OUTPUT, a header with the commit of the checkout SOURCE at this moment:
#   cmake -D SOURCE=... -D OUTPUT=... -P commit.cmake
# "-dirty" behind it: what the program is built from is edited. "unknown": SOURCE is no checkout of its own, or git is
# missing.
# A header that says so already is left alone, so that nothing is compiled again.
find_program(git git)
set(commit unknown)
if(git)
  execute_process(COMMAND ${git} rev-parse --show-toplevel HEAD WORKING_DIRECTORY ${SOURCE}
    OUTPUT_VARIABLE lines ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE failed)
  string(REPLACE "\n" ";" lines "${lines}")
  list(LENGTH lines num_lines)
  if(NOT failed AND num_lines EQUAL 2)
    list(GET lines 0 root)
    file(REAL_PATH ${root} root)
    file(REAL_PATH ${SOURCE} source)
    if(root STREQUAL source)
      list(GET lines 1 commit)
      execute_process(COMMAND ${git} status --porcelain -- CMakeLists.txt CMakePresets.json cli cmake include src
        WORKING_DIRECTORY ${SOURCE} OUTPUT_VARIABLE edits ERROR_QUIET)
      if(NOT edits STREQUAL "")
        string(APPEND commit -dirty)
      endif()
    endif()
  endif()
endif()
set(text "#define FLASHMOE_COMMIT \"${commit}\"\n")
set(before)
if(EXISTS ${OUTPUT})
  file(READ ${OUTPUT} before)
endif()
if(NOT before STREQUAL text)
  file(WRITE ${OUTPUT} "${text}")
endif()
