// What is wrong with a command line that the parser refuses.
#pragma once

#include <span>
#include <string>

namespace CLI {
class App;
class ParseError;
}

namespace flashmoe::cli {

/// One sentence that says it, and where the flags are listed. `words`: behind the program's name.
std::string sentence_of(const CLI::ParseError& error, const CLI::App& app, std::span<char* const> words);

}  // namespace flashmoe::cli
