// JSON from files that somebody else wrote: bounded in size and depth, and one exception type for every fault.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace flashmoe {

struct JsonLimits {
  std::size_t bytes = std::size_t{16} << 20;
  int depth = 64;  ///< objects and arrays inside each other
};

/// Parses `text`, whose source messages call `origin`. Throws InvalidArgument, one sentence, where the text is no JSON,
/// holds a number no double can hold, gives a key of an object twice (what a reader sees must not depend on the reader),
/// has more than 4 million values, or passes a limit. Takes time in proportion to the text, and memory up to about 35
/// times its length where it is made of tiny values.
nlohmann::json parse_json(std::string_view text, std::string_view origin, const JsonLimits& limits = {});

/// A value in a message: scalars as JSON writes them, cut and made printable; "an array", "an object".
std::string describe(const nlohmann::json& value);

}  // namespace flashmoe
