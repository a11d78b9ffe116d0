#include "api/checks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

#include "core/printable.hpp"
#include "flashmoe/error.hpp"

namespace flashmoe {

void check_pointer(const char* name, const void* pointer, std::size_t alignment) {
  if (pointer == nullptr) throw InvalidArgument(fmt::format("{} must not be null: pass its memory", name));
  if (reinterpret_cast<std::uintptr_t>(pointer) % alignment != 0) {
    throw InvalidArgument(fmt::format("{} ({}) must be aligned to its elements of {} bytes: pass whole elements", name,
                                      pointer, alignment));
  }
}

void check_group_id(const std::string& group_id) {
  const bool plain = std::all_of(group_id.begin(), group_id.end(), [](char c) { return c >= ' ' && c <= '~'; });
  if (!group_id.empty() && group_id.size() <= ProcessRank::kMaxGroupId && plain) return;
  throw InvalidArgument(
      fmt::format("group_id must have 1..{} printable ASCII characters, got {} ('{}'): give the ranks of "
                  "a run another name",
                  ProcessRank::kMaxGroupId, group_id.size(), printable(group_id)));
}

void check_seconds(const char* name, double got, const char* after_which) {
  constexpr double kLongest = 1e6;
  if (got > 0 && got <= kLongest) return;
  throw InvalidArgument(fmt::format("{} ({}) must be above 0 and at most {}: give the seconds after which {}", name, got,
                                    kLongest, after_which));
}

void check_backend(BackendKind backend) {
  if (backend == BackendKind::cpu || backend == BackendKind::cuda) return;
  throw InvalidArgument(fmt::format("backend (number {}) must be one of cpu, cuda: use a named enumerator",
                                    static_cast<int>(backend)));
}

}  // namespace flashmoe
