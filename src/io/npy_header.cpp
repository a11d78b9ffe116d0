#include "io/npy_header.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <set>

#include "core/printable.hpp"
#include "flashmoe/error.hpp"

namespace flashmoe {
namespace {

constexpr std::size_t kMaxDimensions = 32;  // NumPy's own limit

// Reads the few Python literals a header is made of, left to right.
class Literals {
 public:
  explicit Literals(std::string_view text) : text_(text) {}

  /// Skips blanks, then takes `token` if it is next.
  bool take(std::string_view token) {
    skip_blanks();
    if (!text_.substr(position_).starts_with(token)) return false;
    position_ += token.size();
    return true;
  }

  void expect(std::string_view token) {
    if (!take(token)) fail(fmt::format("'{}'", token));
  }

  std::string string() {
    const char quote = take("'") ? '\'' : take("\"") ? '"' : '\0';
    if (quote == '\0') fail("a string");
    const std::size_t end = text_.find(quote, position_);
    if (end == std::string_view::npos) fail("the end of a string");
    std::string value(text_.substr(position_, end - position_));
    position_ = end + 1;
    return value;
  }

  bool boolean() {
    if (take("True")) return true;
    if (!take("False")) fail("True or False");
    return false;
  }

  std::vector<std::int64_t> shape() {
    std::vector<std::int64_t> dimensions;
    expect("(");
    while (!take(")")) {
      if (dimensions.size() == kMaxDimensions) fail(fmt::format("at most {} dimensions", kMaxDimensions));
      dimensions.push_back(dimension());
      if (!take(",")) {
        expect(")");
        break;
      }
    }
    return dimensions;
  }

  void expect_end() {
    skip_blanks();
    if (position_ != text_.size()) fail("nothing more");
  }

 private:
  void skip_blanks() {
    while (position_ < text_.size() && (text_[position_] == ' ' || text_[position_] == '\n')) ++position_;
  }

  std::int64_t dimension() {
    skip_blanks();
    std::int64_t value = -1;
    const char* begin = text_.data() + position_;
    const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), value);
    if (error != std::errc{} || value < 0) fail("a dimension of 0 or more that fits 64 bits");
    position_ += static_cast<std::size_t>(end - begin);
    return value;
  }

  [[noreturn]] void fail(std::string_view wanted) const {
    throw InvalidArgument(fmt::format("its header must have {} at character {}", wanted, position_));
  }

  std::string_view text_;
  std::size_t position_ = 0;
};

}  // namespace

NpyHeader parse_npy_header(std::string_view text) {
  NpyHeader header;
  std::set<std::string> seen;
  Literals literals(text);
  literals.expect("{");
  while (!literals.take("}")) {
    const std::string key = literals.string();
    literals.expect(":");
    if (key == "descr") {
      header.descr = literals.string();
    } else if (key == "fortran_order") {
      header.fortran_order = literals.boolean();
    } else if (key == "shape") {
      header.shape = literals.shape();
    } else {
      throw InvalidArgument(fmt::format("its header's keys must be descr, fortran_order and shape, not '{}'", printable(key)));
    }
    if (!seen.insert(key).second) throw InvalidArgument(fmt::format("its header must have '{}' once", key));
    if (!literals.take(",")) {
      literals.expect("}");
      break;
    }
  }
  literals.expect_end();
  if (seen.size() != 3) throw InvalidArgument("its header must have the keys descr, fortran_order and shape");
  return header;
}

std::string format_npy_header(std::string_view descr, const std::vector<std::int64_t>& shape) {
  const std::string_view tail = shape.size() == 1 ? "," : "";  // Python's tuple of one
  return fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}{}), }}", descr, fmt::join(shape, ", "), tail);
}

}  // namespace flashmoe
