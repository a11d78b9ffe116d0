#include "api/checks.hpp"

#include <fmt/format.h>

#include <cstdint>

#include "flashmoe/error.hpp"

namespace flashmoe {

void check_pointer(const char* name, const void* pointer, std::size_t alignment) {
  if (pointer == nullptr) throw InvalidArgument(fmt::format("{} must not be null: pass its memory", name));
  if (reinterpret_cast<std::uintptr_t>(pointer) % alignment != 0) {
    throw InvalidArgument(fmt::format("{} ({}) must be aligned to its elements of {} bytes: pass whole elements", name,
                                      pointer, alignment));
  }
}

void check_backend(BackendKind backend) {
  if (backend == BackendKind::cpu || backend == BackendKind::cuda) return;
  throw InvalidArgument(fmt::format("backend (number {}) must be one of cpu, cuda: use a named enumerator",
                                    static_cast<int>(backend)));
}

}  // namespace flashmoe
