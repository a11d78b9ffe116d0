// The CPU backend behind the interface every backend has.
#pragma once

#include <memory>

#include "api/backend.hpp"

namespace flashmoe {

std::unique_ptr<Backend> make_cpu_backend(const GroupOptions& options);

}  // namespace flashmoe
