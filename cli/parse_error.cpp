#include "parse_error.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <string_view>

#include "core/printable.hpp"

namespace flashmoe::cli {

namespace {

/// The first flag that the command does not have; empty: none. The parser may take what stands behind it for the cause.
std::string_view unknown_flag(const CLI::App& command, std::span<char* const> words) {
  for (const std::string_view word : words) {
    const std::string_view flag = word.substr(0, word.find('='));
    if (flag.starts_with("--") && flag.size() > 2 && command.get_option_no_throw(std::string(flag)) == nullptr) return flag;
  }
  return {};
}

/// Name of a flag that takes one value and got several; empty: none.
std::string repeated_flag(const CLI::App& command) {
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_items_expected_max() == 1 && option->count() > 1) return option->get_name();
  }
  return {};
}

std::string sentence_about(const CLI::ParseError& error, const CLI::App& command, std::span<char* const> words) {
  if (const std::string_view flag = unknown_flag(command, words); !flag.empty()) {
    return fmt::format("{} has no flag {}", command.get_name(), printable(flag));
  }
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr) {
    if (const std::string flag = repeated_flag(command); !flag.empty()) {
      return fmt::format("{} is given more than once: leave one out", flag);
    }
  }
  // Of the option's own type.
  const bool too_large = dynamic_cast<const CLI::ConversionError*>(&error) != nullptr;
  return error.what() + std::string(too_large ? ": the number is too large" : "");
}

}  // namespace

std::string sentence_of(const CLI::ParseError& error, const CLI::App& app, std::span<char* const> words) {
  const auto commands = app.get_subcommands();
  if (!commands.empty()) {
    const CLI::App& command = *commands.front();
    return fmt::format("{} (flashmoe {} --help lists its flags)", sentence_about(error, command, words.subspan(1)),
                       command.get_name());
  }
  // Where no command is known the parser only says that it wants one.
  const bool unknown = !words.empty() && words.front()[0] != '-';
  return (unknown ? fmt::format("no command is called {}", printable(words.front())) : std::string(error.what())) +
         " (flashmoe --help lists the commands)";
}

}  // namespace flashmoe::cli
