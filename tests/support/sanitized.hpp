// Whether this build is instrumented: the longest tests then do less.
#pragma once

namespace flashmoe::test {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

/// `count`, or a tenth of it in an instrumented build.
constexpr int fewer_if_sanitized(int count) { return kSanitized ? (count + 9) / 10 : count; }

}  // namespace flashmoe::test
