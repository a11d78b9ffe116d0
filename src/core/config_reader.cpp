#include "core/config_reader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/json_text.hpp"
#include "flashmoe/error.hpp"

namespace flashmoe {
namespace {

/// The value as an int in [low, high], if it is one; integers of any size, but no floats and no booleans.
std::optional<int> as_integer(const nlohmann::json& value, int low, int high) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<std::uint64_t>();
    if (high < 0 || number > static_cast<std::uint64_t>(high)) return std::nullopt;
    return static_cast<int>(number) >= low ? std::optional(static_cast<int>(number)) : std::nullopt;
  }
  if (!value.is_number_integer()) return std::nullopt;
  const auto number = value.get<std::int64_t>();
  if (number < low || number > high) return std::nullopt;
  return static_cast<int>(number);
}

}  // namespace

ConfigReader::ConfigReader(const nlohmann::json& object, std::string_view origin, std::string prefix)
    : object_(object), origin_(origin), prefix_(std::move(prefix)) {}

const nlohmann::json* ConfigReader::find(std::string_view key) const {
  const auto found = object_.find(key);
  return found == object_.end() ? nullptr : &*found;
}

void ConfigReader::refuse(std::string_view key, std::string_view wanted, std::string_view remedy) const {
  const nlohmann::json* got = find(key);
  throw InvalidArgument(fmt::format("{}{} ({}) in {} must be {}: {}", prefix_, key, got ? describe(*got) : "missing",
                                    origin_, wanted, remedy));
}

int ConfigReader::checked_integer(std::string_view key, const nlohmann::json& value, int low, int high) const {
  if (const auto number = as_integer(value, low, high)) return *number;
  refuse(key, fmt::format("an integer between {} and {}", low, high));
}

int ConfigReader::integer(const std::vector<std::string_view>& keys, int low, int high) const {
  std::optional<int> result;
  std::string_view result_key;
  for (const std::string_view key : keys) {
    const nlohmann::json* value = find(key);
    if (!value) continue;
    const int number = checked_integer(key, *value, low, high);
    if (result && number != *result) refuse(key, fmt::format("equal to {} ({})", result_key, *result));
    result = number;
    result_key = key;
  }
  if (!result) refuse(keys.front(), fmt::format("an integer between {} and {}", low, high));
  return *result;
}

int ConfigReader::integer_or(std::string_view key, int fallback, int low, int high) const {
  const nlohmann::json* value = find(key);
  return value ? checked_integer(key, *value, low, high) : fallback;
}

double ConfigReader::number_or(std::string_view key, double fallback, double low, double high) const {
  const nlohmann::json* value = find(key);
  if (!value) return fallback;
  if (value->is_number()) {
    const double number = value->get<double>();
    if (number >= low && number <= high) return number;
  }
  refuse(key, fmt::format("a number between {} and {}", low, high));
}

bool ConfigReader::boolean_or(std::string_view key, bool fallback) const {
  const nlohmann::json* value = find(key);
  if (!value) return fallback;
  if (!value->is_boolean()) refuse(key, "true or false");
  return value->get<bool>();
}

std::string ConfigReader::text(std::string_view key) const {
  const nlohmann::json* value = find(key);
  if (!value || !value->is_string()) refuse(key, "a string");
  return value->get<std::string>();
}

std::string ConfigReader::text_or(std::string_view key, std::string_view fallback) const {
  return find(key) ? text(key) : std::string(fallback);
}

std::optional<std::vector<int>> ConfigReader::integers(std::string_view key, int low, int high) const {
  const nlohmann::json* value = find(key);
  if (!value || value->is_null()) return std::nullopt;
  const auto refuse_list = [&] { refuse(key, fmt::format("a list of integers between {} and {}", low, high)); };
  if (!value->is_array()) refuse_list();
  std::vector<int> numbers;
  for (const nlohmann::json& element : *value) {
    const auto number = as_integer(element, low, high);
    if (!number) refuse_list();
    numbers.push_back(*number);
  }
  std::sort(numbers.begin(), numbers.end());
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  return numbers;
}

ConfigReader ConfigReader::object(std::string_view key) const {
  const nlohmann::json* value = find(key);
  if (!value || !value->is_object()) refuse(key, "an object");
  return ConfigReader(*value, origin_, fmt::format("{}{}.", prefix_, key));
}

}  // namespace flashmoe
