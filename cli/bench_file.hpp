// A results file, schema "bench": where and how a sweep ran, and a row for every case that is done.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace flashmoe::cli {

class BenchFile {
 public:
  /// `header`: what all rows share, "schema", "card", "driver", "backend", "commit" and "program" among it. With
  /// `resume`, rows that the file has already are kept; without, a file that exists is refused. An empty path: nothing
  /// is written. `command`: that of this run. Throws InvalidArgument as read_bench_file(), and for a file from another
  /// card, driver, backend or commit; where the commit does not name the code, for one from another program.
  BenchFile(std::filesystem::path path, nlohmann::json header, std::string command, bool resume);

  /// Rows that were measured, those that say why they were not left out.
  std::size_t num_measured() const;

  /// The row with this identity; null: none. Until the next add().
  const nlohmann::json* find(const nlohmann::json& identity) const;

  /// Adds a row, in place of one of the same identity, and the run's command to "commands", which are those that rows
  /// come from; writes the file anew.
  void add(const nlohmann::json& row);

  /// Says of a system whose measurements are added next which card they are of and, unless null, under what conditions.
  void add_baseline(const std::string& name, const std::string& card, const nlohmann::json& conditions);

  const nlohmann::json& rows() const { return content_["rows"]; }
  const nlohmann::json& content() const { return content_; }

 private:
  std::filesystem::path path_;
  nlohmann::json content_;
  std::string command_;
};

/// Measurements of other systems, from files of schema "baseline" (docs/files.md).
class Baselines {
 public:
  /// Throws as read_baseline_file().
  explicit Baselines(const std::vector<std::string>& files);

  /// {name: latency_us} of those that measured what the row did. What theirs says of the layer beyond its name must be
  /// so.
  nlohmann::json of(const nlohmann::json& row) const;

  /// {name: card} of all.
  nlohmann::json cards() const;

 private:
  std::vector<nlohmann::json> files_;
};

}  // namespace flashmoe::cli
