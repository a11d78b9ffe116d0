// Checks of what the caller hands in.
#pragma once

#include <cstddef>

#include "flashmoe/group.hpp"

namespace flashmoe {

/// Throws InvalidArgument when `pointer` is null or not aligned to `alignment` bytes.
void check_pointer(const char* name, const void* pointer, std::size_t alignment);

/// Throws InvalidArgument for a number that is no backend.
void check_backend(BackendKind backend);

}  // namespace flashmoe
