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

/// What a command's results are computed from.
struct InputFile {
  std::string flag;            ///< "--hidden-states"
  std::filesystem::path path;  ///< a folder stands for the files in it
};

/// Says before a long run what would fail, or lose a file, after it. Throws InvalidArgument for a folder, a file in no
/// folder, a results file of another schema, two flags that name one file, and an output that is an input, by whatever
/// names; empty paths are not looked at.
void check_outputs(const std::vector<OutputFile>& outputs, const std::vector<InputFile>& inputs);

}  // namespace flashmoe::cli
