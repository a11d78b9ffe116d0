#include "io/strict_json.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>
#include <unordered_set>
#include <vector>

#include "core/json_text.hpp"
#include "core/printable.hpp"
#include "flashmoe/error.hpp"

namespace flashmoe {
namespace {

using nlohmann::json;

constexpr int kMaxValues = 4'000'000;
constexpr std::size_t kShownKey = 120;

/// Sees every key and value of a text go by and keeps none but the keys of the objects that are open. Returns false,
/// the parser's sign to stop, at what parse_json() refuses by itself: faulty text and deep nesting.
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
    return count() && open_.size() <= static_cast<std::size_t>(JsonLimits{}.depth);
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

}  // namespace

json parse_strict_json(std::string_view text, std::string_view origin) {
  if (text.size() <= JsonLimits{}.bytes) {
    Scan scan(origin);
    json::sax_parse(text, &scan);
  }
  return parse_json(text, origin);
}

}  // namespace flashmoe
