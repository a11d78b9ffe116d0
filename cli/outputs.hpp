// The files that a command will write.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace flashmoe::cli {

struct OutputFile {
  std::string flag;  ///< "--csv"
  std::filesystem::path path;
  std::string schema{};  ///< of the results file it becomes; empty: it becomes none
};

/// Says before a long run what would fail, or lose a result, after it. Throws InvalidArgument for a folder, a file in
/// no folder, a results file of another schema, and two flags that name one file; empty paths are not looked at.
void check_outputs(const std::vector<OutputFile>& outputs);

}  // namespace flashmoe::cli
