// Checks of what the caller hands in.
#pragma once

#include <cstddef>
#include <string>

#include "flashmoe/group.hpp"

namespace flashmoe {

/// Throws InvalidArgument when `pointer` is null or not aligned to `alignment` bytes.
void check_pointer(const char* name, const void* pointer, std::size_t alignment);

/// Throws InvalidArgument for a group id that ProcessRank does not allow.
void check_group_id(const std::string& group_id);

/// Throws InvalidArgument for no time, or one too long to be counted in nanoseconds; `after_which` follows "the seconds after
/// which".
void check_seconds(const char* name, double got, const char* after_which);

/// Throws InvalidArgument for a number that is no backend.
void check_backend(BackendKind backend);

}  // namespace flashmoe
