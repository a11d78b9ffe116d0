// The checkout that the program was built in, for what it runs from there.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace flashmoe::cli {

/// The nearest folder above the program that has this project's scripts; none for a program installed elsewhere.
std::optional<std::filesystem::path> find_checkout();

/// The commit that git sees where the program lies, which for a build folder is the checkout's; "unknown" without one.
std::string commit_of_program();

}  // namespace flashmoe::cli
