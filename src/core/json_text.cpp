#include "core/json_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/printable.hpp"
#include "flashmoe/error.hpp"

namespace flashmoe {
namespace {

/// Most brackets open at once, outside strings. Exact up to the first error of the text, and at least the depth a
/// parser reaches, which stops there. (The parser's own callback would tell the depth too, but with one every object
/// that ends makes it search the whole list around it, so that a list of objects takes quadratic time.)
int nesting_depth(std::string_view text) {
  int depth = 0;
  int deepest = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      in_string = c != '"';
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      deepest = std::max(deepest, ++depth);
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return deepest;
}

}  // namespace

nlohmann::json parse_json(std::string_view text, std::string_view origin, const JsonLimits& limits) {
  if (text.size() > limits.bytes) {
    throw InvalidArgument(fmt::format("{} ({} bytes) must be at most {} bytes of JSON: check that it is the right file",
                                      origin, text.size(), limits.bytes));
  }
  if (nesting_depth(text) > limits.depth) {
    throw InvalidArgument(fmt::format(
        "{} must not nest objects and arrays deeper than {}: check that it is the right file", origin, limits.depth));
  }
  try {
    return nlohmann::json::parse(text);
  } catch (const nlohmann::json::parse_error& error) {
    throw InvalidArgument(fmt::format("{} must be valid JSON, and is not from byte {} of {} on: fetch the file again",
                                      origin, error.byte, text.size()));
  } catch (const nlohmann::json::out_of_range&) {
    throw InvalidArgument(
        fmt::format("{} must hold numbers that fit a double, and has one too large: correct that number", origin));
  }
}

std::string describe(const nlohmann::json& value) {
  if (value.is_array()) return "an array";
  if (value.is_object()) return "an object";
  if (value.is_string()) return fmt::format("\"{}\"", printable(value.get_ref<const std::string&>()));
  return printable(value.dump());
}

}  // namespace flashmoe
