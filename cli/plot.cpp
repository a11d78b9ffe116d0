#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>

#include "checkout.hpp"
#include "commands.hpp"
#include "flashmoe/error.hpp"

namespace flashmoe::cli {

ExitCode plot(const std::vector<std::string>& arguments) {
  const std::optional<std::filesystem::path> checkout = find_checkout();
  if (!checkout) {
    throw InvalidArgument(
        "flashmoe plot needs tools/plot of a checkout, and the program lies in none: run the one in a "
        "checkout's build folder");
  }
  const std::string script = (*checkout / "tools/plot/plot.py").string();
  const bool asks_for_help = std::any_of(arguments.begin(), arguments.end(), [](const std::string& argument) {
    return argument == "--help" || argument == "-h";
  });
  std::string python = (*checkout / ".venv/plot/bin/python").string();
  const bool installed = access(python.c_str(), X_OK) == 0;
  if (!installed && asks_for_help) python = "python3";  // any will do: nothing is drawn
  if (!installed && !asks_for_help) {
    throw InvalidArgument(fmt::format("flashmoe plot needs matplotlib in {}: run {}",
                                      (*checkout / ".venv/plot").string(),
                                      (*checkout / "tools/bootstrap.sh plot").string()));
  }
  std::vector<std::string> words{python, "-B", script};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  execvp(python.c_str(), pointers.data());
  throw Error(
      fmt::format("{} could not be started ({}): run tools/bootstrap.sh plot again", python, std::strerror(errno)));
}

}  // namespace flashmoe::cli
