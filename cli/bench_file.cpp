#include "bench_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>

#include "bench_report.hpp"
#include "commit.hpp"
#include "core/json_text.hpp"
#include "flashmoe/error.hpp"
#include "io/new_file.hpp"

namespace flashmoe::cli {

namespace {

/// The object of a file whose "schema" is `schema` and whose "rows" are objects.
nlohmann::json read_rows_file(const std::filesystem::path& path, const std::string& schema) {
  std::error_code ignored;
  std::ifstream stream(path, std::ios::binary);
  if (!stream || std::filesystem::is_directory(path, ignored))
    throw InvalidArgument(fmt::format("{} cannot be read: give a JSON file of schema {}", path.string(), schema));
  const std::string text(std::istreambuf_iterator<char>(stream), {});
  nlohmann::json json = parse_json(text, path.string());
  const nlohmann::json found = json.is_object() && json.contains("schema") ? json["schema"] : nlohmann::json(nullptr);
  if (found != schema) {
    throw InvalidArgument(
        fmt::format("{} must be of schema \"{}\", got {}: give another file", path.string(), schema, describe(found)));
  }
  if (!json.contains("rows") || !json["rows"].is_array()) {
    throw InvalidArgument(fmt::format("{} must have an array \"rows\": give another file", path.string()));
  }
  for (const nlohmann::json& row : json["rows"]) {
    if (!row.is_object()) {
      throw InvalidArgument(fmt::format("{}: every row must be an object, got {}", path.string(), describe(row)));
    }
  }
  return json;
}

/// Whether what another system's row says of the layer, in its "problem" or beside the model, is so in ours.
bool fits(const nlohmann::json& theirs, const nlohmann::json& problem) {
  for (const char* key : {"hidden", "intermediate", "num_experts", "top_k", "activation", "gated", "up_bias",
                          "down_bias", "weight_on_input", "swiglu_alpha", "swiglu_limit", "batch_invariant"}) {
    const nlohmann::json& where =
        theirs.contains("problem") && theirs["problem"].contains(key) ? theirs["problem"] : theirs;
    if (where.contains(key) && where[key] != problem[key]) return false;
  }
  return true;
}

/// Refuses a row that names no case or no time of another system.
void check_measured(const nlohmann::json& row, const std::string& file) {
  const auto require = [&](const char* key, const char* wanted, bool right) {
    if (right) return;
    throw InvalidArgument(fmt::format("{}: \"{}\" of every row must be {}, got {}: correct the file", file, key, wanted,
                                      row.contains(key) ? describe(row[key]) : "none"));
  };
  const auto whole = [&](const char* key) { return row.contains(key) && row[key].is_number_integer() && row[key] >= 0; };
  for (const char* key : {"model", "dtype", "routing"}) {
    require(key, "a string", row.contains(key) && row[key].is_string());
  }
  for (const char* key : {"tokens_per_rank", "num_ranks"}) require(key, "a whole number", whole(key));
  const bool timed = row.contains("latency_us") && row["latency_us"].is_number() && row["latency_us"] > 0;
  require("latency_us", "a number above 0", timed);
  require("problem", "an object, or left out", !row.contains("problem") || row["problem"].is_object());
}

}  // namespace

BenchFile::BenchFile(std::filesystem::path path, nlohmann::json header, std::string command, bool resume)
    : path_(std::move(path)), content_(std::move(header)), command_(std::move(command)) {
  content_["commands"] = nlohmann::json::array();
  content_["rows"] = nlohmann::json::array();
  std::error_code ignored;
  if (path_.empty() && resume) throw InvalidArgument("--continue goes on with a results file: name it with --output");
  if (path_.empty()) return;
  if (!std::filesystem::exists(path_, ignored)) return;
  if (!resume) {
    throw InvalidArgument(
        fmt::format("output ({}) exists: give --continue to add what is missing, or another name", path_.string()));
  }
  nlohmann::json before = read_rows_file(path_, "bench");
  for (const char* key : {"card", "driver", "backend", "commit"}) {
    if (before[key] == content_[key]) continue;
    throw InvalidArgument(fmt::format("output ({}) was measured with {} {} and this is {}: give another name",
                                      path_.string(), key, describe(before[key]), describe(content_[key])));
  }
  if (!names_code(content_["commit"]) && before["program"] != content_["program"]) {
    throw InvalidArgument(fmt::format(
        "output ({}) was measured by another program than this one, and commit {} does not tell them apart: "
        "give another name, or --commit",
        path_.string(), describe(content_["commit"])));
  }
  if (before["commands"].is_array()) {
    content_["commands"] = std::move(before["commands"]);
  } else if (before.contains("command")) {  // a file of old
    content_["commands"].push_back(std::move(before["command"]));
  }
  content_["rows"] = std::move(before["rows"]);
  for (const char* key : {"baseline_cards", "baseline_conditions"}) {
    if (before.contains(key) && before[key].is_object()) content_[key].update(before[key]);
  }
}

void BenchFile::add_baseline(const std::string& name, const std::string& card, const nlohmann::json& conditions) {
  content_["baseline_cards"][name] = card;
  if (!conditions.is_null()) content_["baseline_conditions"][name] = conditions;
}

const nlohmann::json* BenchFile::find(const nlohmann::json& identity) const {
  for (const nlohmann::json& row : rows()) {
    if (identity_of_row(row) == identity) return &row;
  }
  return nullptr;
}

std::size_t BenchFile::num_measured() const {
  return static_cast<std::size_t>(
      std::count_if(rows().begin(), rows().end(), [](const nlohmann::json& row) { return !row.contains("error"); }));
}

void BenchFile::add(const nlohmann::json& row) {
  nlohmann::json& rows = content_["rows"];
  const nlohmann::json identity = identity_of_row(row);
  for (std::size_t i = rows.size(); i-- > 0;) {
    if (identity_of_row(rows[i]) == identity) rows.erase(i);
  }
  rows.push_back(row);
  nlohmann::json& commands = content_["commands"];
  if (std::find(commands.begin(), commands.end(), command_) == commands.end()) commands.push_back(command_);
  if (!path_.empty()) write_new_file(path_, [&](std::ostream& stream) { stream << content_.dump(1) << '\n'; });
}

Baselines::Baselines(const std::vector<std::string>& files) {
  for (const std::string& file : files) {
    files_.push_back(read_rows_file(file, "baseline"));
    const nlohmann::json& json = files_.back();
    for (const char* key : {"name", "card"}) {
      if (!json.contains(key) || !json[key].is_string()) {
        throw InvalidArgument(fmt::format("{} must name its \"{}\": add a string", file, key));
      }
    }
    for (const nlohmann::json& row : json["rows"]) check_measured(row, file);
  }
}

nlohmann::json Baselines::of(const nlohmann::json& row) const {
  nlohmann::json found = nlohmann::json::object();
  for (const nlohmann::json& file : files_) {
    for (const nlohmann::json& theirs : file["rows"]) {
      bool same = true;
      for (const char* key : {"model", "tokens_per_rank", "num_ranks", "dtype", "routing"}) {
        same = same && theirs[key] == row[key];
      }
      if (same && fits(theirs, row["problem"])) found[file["name"].get<std::string>()] = theirs["latency_us"];
    }
  }
  return found;
}

nlohmann::json Baselines::cards() const {
  nlohmann::json cards = nlohmann::json::object();
  for (const nlohmann::json& file : files_) cards[file["name"].get<std::string>()] = file["card"];
  return cards;
}

}  // namespace flashmoe::cli
