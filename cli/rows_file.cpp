#include "rows_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <system_error>

#include "core/json_text.hpp"
#include "flashmoe/error.hpp"

namespace flashmoe::cli {

namespace {

using Json = nlohmann::json;

/// What a value must be, in words and as a function.
struct Kind {
  const char* wanted;
  bool (*right)(const Json& value);
};

/// Whether a value is an object, or an array, of nothing else.
template <bool (*right)(const Json&)>
bool all_of(const Json& value) {
  return std::all_of(value.begin(), value.end(), right);
}

bool is_text(const Json& value) { return value.is_string(); }
bool is_object(const Json& value) { return value.is_object(); }
bool is_truth(const Json& value) { return value.is_boolean(); }
bool is_whole(const Json& value) { return value.is_number_integer() && value >= 0; }
bool is_number(const Json& value) { return value.is_number() && value >= 0; }
bool is_time(const Json& value) { return value.is_number() && value > 0; }
bool is_number_or_null(const Json& value) { return value.is_null() || is_number(value); }
bool is_count_of_ranks(const Json& value) { return is_whole(value) && value >= 1; }
bool are_counts(const Json& value) {
  return is_whole(value) || (value.is_array() && !value.empty() && all_of<is_whole>(value));
}
bool are_commands(const Json& value) { return value.is_array() && all_of<is_text>(value); }
bool are_times(const Json& value) { return value.is_object() && all_of<is_time>(value); }
bool are_texts(const Json& value) { return value.is_object() && all_of<is_text>(value); }

constexpr Kind kText{"a string", is_text};
constexpr Kind kObject{"an object", is_object};
constexpr Kind kTruth{"true or false", is_truth};
constexpr Kind kWhole{"a whole number, 0 or more", is_whole};
constexpr Kind kNumRanks{"a whole number above 0", is_count_of_ranks};
constexpr Kind kCounts{"a whole number, or one a rank", are_counts};
constexpr Kind kNumber{"a number, 0 or more", is_number};
constexpr Kind kNumberOrNull{"a number, 0 or more, or null", is_number_or_null};
constexpr Kind kTime{"a number above 0", is_time};
constexpr Kind kTimes{"an object of names and numbers above 0", are_times};
constexpr Kind kTexts{"an object of names and strings", are_texts};
constexpr Kind kCommands{"an array of strings", are_commands};

enum class Needed : bool { no, yes };

struct Field {
  const char* key;
  Kind kind;
  Needed needed = Needed::yes;
};

constexpr Field kBenchHeader[] = {
    {"commands", kCommands, Needed::no},
    {"command", kText, Needed::no},
    {"baseline_cards", kTexts, Needed::no},
    {"baseline_conditions", kObject, Needed::no},
};
/// Of every row of a sweep.
constexpr Field kCase[] = {
    {"model", kText}, {"tokens_per_rank", kCounts}, {"num_ranks", kNumRanks},
    {"dtype", kText}, {"routing", kText},           {"problem", kObject},
    {"seed", kWhole}, {"backend", kText},           {"replay", kText},
};
/// Of one that was measured.
constexpr Field kMeasured[] = {
    {"latency_us", kTime},
    {"p95_us", kTime},
    {"bound_us", kNumber},
    {"bound_limiter", kText},
    {"fraction_of_bound", kNumber},
    {"tflops_per_gpu", kNumber},
    {"hbm_gb_per_s", kNumber},
    {"wire_gb_per_s", kNumber},
    {"rel_l2", kNumberOrNull},
    {"passed", kTruth},
    {"baselines", kTimes},
    {"baseline_details", kObject, Needed::no},
    {"baseline_errors", kTexts, Needed::no},
    {"settings", kObject, Needed::no},  // a file of old has none: its rows are measured anew
    {"verify_tokens", kWhole, Needed::no},
};
/// Of one that was not.
constexpr Field kFailed[] = {{"error", kText}, {"exit_code", kWhole, Needed::no}};

constexpr Field kBaselineHeader[] = {{"name", kText}, {"card", kText}};
constexpr Field kBaselineRow[] = {
    {"model", kText},   {"tokens_per_rank", kWhole}, {"num_ranks", kNumRanks},         {"dtype", kText},
    {"routing", kText}, {"latency_us", kTime},       {"problem", kObject, Needed::no},
};

void check_fields(const Json& found, std::span<const Field> fields, const std::string& where) {
  for (const Field& field : fields) {
    const auto value = found.find(field.key);
    if (value == found.end() ? field.needed == Needed::no : field.kind.right(*value)) continue;
    throw InvalidArgument(fmt::format("{}: {} must be {}, got {}: correct the file", where, field.key,
                                      field.kind.wanted, value == found.end() ? "none" : describe(*value)));
  }
}

std::string row_name(const std::filesystem::path& path, std::size_t index) {
  return fmt::format("{}: row {}", path.string(), index);
}

/// The object of a file whose "schema" is `schema` and whose "rows" are objects.
Json read_rows_file(const std::filesystem::path& path, const std::string& schema) {
  std::error_code ignored;
  std::ifstream stream(path, std::ios::binary);
  if (!stream || std::filesystem::is_directory(path, ignored))
    throw InvalidArgument(fmt::format("{} cannot be read: give a JSON file of schema {}", path.string(), schema));
  const std::string text(std::istreambuf_iterator<char>(stream), {});
  Json json = parse_json(text, path.string());
  const Json found = json.is_object() && json.contains("schema") ? json["schema"] : Json(nullptr);
  if (found != schema) {
    throw InvalidArgument(
        fmt::format("{} must be of schema \"{}\", got {}: give another file", path.string(), schema, describe(found)));
  }
  if (!json.contains("rows") || !json["rows"].is_array()) {
    throw InvalidArgument(fmt::format("{} must have an array \"rows\": give another file", path.string()));
  }
  const Json& rows = json["rows"];
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (!rows[i].is_object()) {
      throw InvalidArgument(
          fmt::format("{} must be an object, got {}: correct the file", row_name(path, i), describe(rows[i])));
    }
  }
  return json;
}

}  // namespace

Json read_bench_file(const std::filesystem::path& path) {
  Json json = read_rows_file(path, "bench");
  check_fields(json, kBenchHeader, path.string());
  const Json& rows = json["rows"];
  for (std::size_t i = 0; i < rows.size(); ++i) {
    check_fields(rows[i], kCase, row_name(path, i));
    if (rows[i].contains("error")) {
      check_fields(rows[i], kFailed, row_name(path, i));
    } else {
      check_fields(rows[i], kMeasured, row_name(path, i));
    }
  }
  return json;
}

Json read_baseline_file(const std::filesystem::path& path) {
  Json json = read_rows_file(path, "baseline");
  check_fields(json, kBaselineHeader, path.string());
  const Json& rows = json["rows"];
  for (std::size_t i = 0; i < rows.size(); ++i) check_fields(rows[i], kBaselineRow, row_name(path, i));
  return json;
}

}  // namespace flashmoe::cli
