#include "core/json_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <unordered_set>
#include <vector>

#include "core/printable.hpp"
#include "flashmoe/error.hpp"

namespace flashmoe {
namespace {

using nlohmann::json;

constexpr int kMaxValues = 4'000'000;
constexpr std::size_t kShownKey = 120;

/// Sees every key and value of a text go by and keeps none but the keys of the objects that are open. Stops at faulty
/// text, which the parser refuses by itself.
class Scan final : public json::json_sax_t {
 public:
  explicit Scan(std::string_view origin) : origin_(origin) {}

  bool null() override { return count(); }
  bool boolean(bool) override { return count(); }
  bool number_integer(json::number_integer_t) override { return count(); }
  bool number_unsigned(json::number_unsigned_t) override { return count(); }
  bool number_float(json::number_float_t, const std::string&) override { return count(); }
  bool string(std::string&) override { return count(); }
  bool binary(json::binary_t&) override { return count(); }
  bool start_object(std::size_t) override {
    open_.emplace_back();
    return count();
  }
  bool key(std::string& name) override {
    if (!open_.back().insert(name).second) {
      throw InvalidArgument(
          fmt::format("{} must give every key of an object once, and gives {} twice: fetch the file again", origin_,
                      printable(name, kShownKey)));
    }
    return true;
  }
  bool end_object() override {
    open_.pop_back();
    return true;
  }
  bool start_array(std::size_t) override { return count(); }
  bool end_array() override { return true; }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) override { return false; }

 private:
  bool count() {
    if (++num_values_ > kMaxValues) {
      throw InvalidArgument(
          fmt::format("{} must hold at most {} JSON values: check that it is the right file", origin_, kMaxValues));
    }
    return true;
  }

  std::string_view origin_;
  std::vector<std::unordered_set<std::string>> open_;
  int num_values_ = 0;
};


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
  Scan scan(origin);
  json::sax_parse(text, &scan);
  try {
    return json::parse(text);
  } catch (const nlohmann::json::parse_error& error) {
    // An error behind the last byte is one of what is missing there.
    const std::string where = error.byte > text.size() ? fmt::format("ends too early, at byte {}", text.size())
                                                       : fmt::format("is not from byte {} of {} on", error.byte, text.size());
    throw InvalidArgument(fmt::format("{} must be valid JSON, and {}: fetch the file again", origin, where));
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
