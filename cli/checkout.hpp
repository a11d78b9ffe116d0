// The checkout that the program was built in, for what it runs from there.
#pragma once

#include <filesystem>
#include <optional>

namespace flashmoe::cli {

/// The nearest folder above the program that has this project's scripts; none for a program installed elsewhere.
std::optional<std::filesystem::path> find_checkout();

}  // namespace flashmoe::cli
