// Checks of pointers the caller hands in.
#pragma once

#include <cstddef>

namespace flashmoe {

/// Throws InvalidArgument when `pointer` is null or not aligned to `alignment` bytes.
void check_pointer(const char* name, const void* pointer, std::size_t alignment);

}  // namespace flashmoe
