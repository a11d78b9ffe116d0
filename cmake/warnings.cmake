# flashmoe_warnings: the warnings of the project's own code, all of them errors. Linked PRIVATE by its targets;
# other people's headers come in as SYSTEM includes and stay silent.
add_library(flashmoe_warnings INTERFACE)
set(host_warnings -Wall -Wextra -Wpedantic -Wshadow -Werror)
target_compile_options(flashmoe_warnings INTERFACE $<$<COMPILE_LANGUAGE:C,CXX>:${host_warnings}>)
# nvcc's generated host code is not pedantic (line directives), so -Wpedantic stays off there.
target_compile_options(flashmoe_warnings INTERFACE
  "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra,-Wshadow,-Werror;-Werror=all-warnings>")
