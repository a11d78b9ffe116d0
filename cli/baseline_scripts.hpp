// Other systems that `flashmoe bench` times itself, in the same run: the scripts of bench/baselines.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench_cases.hpp"

namespace flashmoe::cli {

/// Whether --baselines means a script by this name, not a file.
bool is_baseline_script(const std::string& name);

/// Of all of them, for a sentence.
std::string baseline_script_names();

class BaselineScript {
 public:
  /// `name`: of a script. Throws InvalidArgument where the program lies in no checkout.
  explicit BaselineScript(std::string name);

  const std::string& name() const { return name_; }

  /// Times each case on the same tokens and routing as ours, one process a GPU. An answer a case, in their order:
  /// {"latency_us", "p95_us", "rel_l2"} or {"error": one sentence}. Throws Error when the inputs cannot be written.
  std::vector<nlohmann::json> time(std::vector<BenchCase>& cases, const BenchOptions& options) const;

 private:
  std::string name_;
  std::filesystem::path script_;
  std::string python_;
};

}  // namespace flashmoe::cli
