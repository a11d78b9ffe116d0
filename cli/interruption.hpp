// What Ctrl-C leaves behind.
#pragma once

#include <filesystem>
#include <string>

namespace flashmoe::cli {

/// While it lives, Ctrl-C (SIGINT) ends the program with one line on standard error and exit code 130. One at a time. A
/// program that was started with SIGINT ignored goes on ignoring it.
class Interruption {
 public:
  /// `lock`: a file that goes with the program; empty: none.
  explicit Interruption(const std::filesystem::path& lock = {});
  ~Interruption();
  Interruption(const Interruption&) = delete;
  Interruption& operator=(const Interruption&) = delete;

  /// What the line says from now on: what is kept, and how to go on.
  void say(const std::string& sentence);
};

}  // namespace flashmoe::cli
