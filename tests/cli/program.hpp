// Runs the program `flashmoe` and keeps what it printed.
#pragma once

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/temp_folder.hpp"

namespace flashmoe::test {

struct Outcome {
  int exit_code = -1;
  int signal = 0;  ///< that ended it, 0: none
  std::string out;
  std::string err;

  /// Standard output as one JSON object; a failure of the test when it is anything else.
  nlohmann::json json() const {
    nlohmann::json object = nlohmann::json::parse(out, nullptr, false);
    EXPECT_TRUE(object.is_object()) << out << err;
    return object;
  }
};

/// Words of a command line, split at spaces.
inline std::vector<std::string> words(const std::string& text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), {}};
}

class Program {
 public:
  explicit Program(const std::vector<std::string>& arguments, const char* standard_output = nullptr) {
    const char* program = std::getenv("FLASHMOE_PROGRAM");
    if (program == nullptr) throw std::runtime_error("FLASHMOE_PROGRAM must name the program to test");
    std::vector<std::string> all{program};
    all.insert(all.end(), arguments.begin(), arguments.end());
    std::vector<char*> pointers;
    for (std::string& argument : all) pointers.push_back(argument.data());
    pointers.push_back(nullptr);
    const std::string out = standard_output != nullptr ? standard_output : (folder_ / "out").string();
    const std::string err = (folder_ / "err").string();
    process_ = fork();
    if (process_ == 0) {
      redirect(out, STDOUT_FILENO);
      redirect(err, STDERR_FILENO);
      execv(program, pointers.data());
      _exit(127);
    }
  }

  void send(int signal) const { kill(process_, signal); }

  pid_t process() const { return process_; }

  /// Whether it has a handler for the signal by now.
  bool handles(int signal) const {
    std::istringstream status(text_of("/proc/" + std::to_string(process_) + "/status"));
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with("SigCgt:")) return (std::stoull(line.substr(7), nullptr, 16) >> (signal - 1) & 1) != 0;
    }
    return false;
  }

  /// What it has printed on standard error so far.
  std::string errors() const { return text_of(folder_ / "err"); }

  Outcome wait() const {
    int status = 0;
    waitpid(process_, &status, 0);
    return {.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1,
            .signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0,
            .out = text_of(folder_ / "out"),
            .err = text_of(folder_ / "err")};
  }

 private:
  static void redirect(const std::string& path, int target) {
    const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (file < 0 || dup2(file, target) < 0) _exit(126);
  }
  static std::string text_of(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  TempFolder folder_;
  pid_t process_ = -1;
};

/// The outcome of `flashmoe <command line>`.
inline Outcome flashmoe(const std::string& command_line) { return Program(words(command_line)).wait(); }

/// The program refuses: nothing on standard output, one line on standard error that says `message`.
inline void expect_refused(const std::string& command_line, const std::string& message, int exit_code = 2) {
  const Outcome outcome = flashmoe(command_line);
  EXPECT_EQ(outcome.exit_code, exit_code) << command_line;
  EXPECT_EQ(outcome.out, "") << command_line;
  EXPECT_THAT(outcome.err, testing::AllOf(testing::StartsWith("flashmoe: error: "), testing::HasSubstr(message)))
      << command_line;
  EXPECT_EQ(outcome.err.find('\n'), outcome.err.size() - 1) << "one line wanted: " << outcome.err;
}

}  // namespace flashmoe::test
