// Files of rows, schemas "bench" and "baseline", as somebody else may have left them.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>

namespace flashmoe::cli {

/// A results file of schema "bench": every field of it that the program reads is there where it is needed, and of its
/// type. Throws InvalidArgument, which names the file, the row from 0 and the field.
nlohmann::json read_bench_file(const std::filesystem::path& path);

/// Likewise measurements of another system, schema "baseline".
nlohmann::json read_baseline_file(const std::filesystem::path& path);

}  // namespace flashmoe::cli
