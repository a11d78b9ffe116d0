#include "bench_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "bench_report.hpp"
#include "commit.hpp"
#include "core/json_text.hpp"
#include "flashmoe/error.hpp"
#include "io/new_file.hpp"
#include "rows_file.hpp"

namespace flashmoe::cli {

namespace {

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
  nlohmann::json before = read_bench_file(path_);
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
  if (before.contains("commands")) {
    content_["commands"] = std::move(before["commands"]);
  } else if (before.contains("command")) {  // a file of old
    content_["commands"].push_back(std::move(before["command"]));
  }
  content_["rows"] = std::move(before["rows"]);
  for (const char* key : {"baseline_cards", "baseline_conditions"}) {
    if (before.contains(key)) content_[key].update(before[key]);
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
  for (const std::string& file : files) files_.push_back(read_baseline_file(file));
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
