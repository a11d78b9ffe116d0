#include "io/histogram_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "core/json_text.hpp"
#include "flashmoe/error.hpp"

namespace flashmoe {

std::vector<double> read_histogram(const std::filesystem::path& file, int num_experts, int top_k) {
  std::ifstream stream(file, std::ios::binary);
  if (!stream) {
    throw InvalidArgument(
        fmt::format("histogram ({}) cannot be read: give a JSON file with a count for every expert", file.string()));
  }
  const std::string text(std::istreambuf_iterator<char>(stream), {});
  const nlohmann::json json = parse_json(text, file.string());
  const auto is_count = [](const nlohmann::json& value) { return value.is_number() && value.get<double>() >= 0; };
  if (!json.is_array() || json.size() != static_cast<std::size_t>(num_experts)) {
    throw InvalidArgument(
        fmt::format("histogram ({}) must be an array of num_experts ({}) numbers of 0 or more, got {}", file.string(),
                    num_experts, json.is_array() ? fmt::format("{} values", json.size()) : describe(json)));
  }
  const auto wrong = std::find_if_not(json.begin(), json.end(), is_count);
  if (wrong != json.end()) {
    throw InvalidArgument(fmt::format("histogram ({}) must hold numbers of 0 or more, got {} at [{}]", file.string(), describe(*wrong),
                                      wrong - json.begin()));
  }
  auto counts = json.get<std::vector<double>>();
  const auto num_used = std::count_if(counts.begin(), counts.end(), [](double count) { return count > 0; });
  if (num_used < top_k) {
    throw InvalidArgument(
        fmt::format("histogram ({}) has {} counts above 0 and a token takes top_k ({}) distinct experts: "
                    "record more tokens",
                    file.string(), num_used, top_k));
  }
  return counts;
}

}  // namespace flashmoe
