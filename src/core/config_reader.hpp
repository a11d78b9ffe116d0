// Typed, bounded access to the keys of one JSON object of a config file. Every refusal is an InvalidArgument that names
// the key, the file, what was got and what was wanted.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace flashmoe {

/// A view: `object` and `origin` must outlive it.
class ConfigReader {
 public:
  /// `object` is a JSON object; `prefix` is what messages put before its keys ("text_config.").
  ConfigReader(const nlohmann::json& object, std::string_view origin, std::string prefix = {});

  /// An integer in [low, high]. The keys are one setting's names in different versions of the format: the first is the
  /// one a message wants; where several are there, they must agree.
  int integer(const std::vector<std::string_view>& keys, int low, int high) const;
  int integer_or(std::string_view key, int fallback, int low, int high) const;

  /// A finite number in [low, high].
  double number_or(std::string_view key, double fallback, double low, double high) const;
  bool boolean_or(std::string_view key, bool fallback) const;
  std::string text(std::string_view key) const;
  std::string text_or(std::string_view key, std::string_view fallback) const;

  /// Integers of a list in [low, high], ascending, each once; nothing where the key is missing or null.
  std::optional<std::vector<int>> integers(std::string_view key, int low, int high) const;

  /// The object under `key`, which must be there.
  ConfigReader object(std::string_view key) const;

  /// The value under `key`, or null where there is none; for what the other members cannot express.
  const nlohmann::json* find(std::string_view key) const;

  static constexpr std::string_view kCompare = "compare with the config.json the model was published with";
  /// Throws "<key> (<got>) in <file> must be <wanted>: <remedy>".
  [[noreturn]] void refuse(std::string_view key, std::string_view wanted, std::string_view remedy = kCompare) const;

 private:
  int checked_integer(std::string_view key, const nlohmann::json& value, int low, int high) const;

  const nlohmann::json& object_;
  std::string_view origin_;
  std::string prefix_;
};

}  // namespace flashmoe
