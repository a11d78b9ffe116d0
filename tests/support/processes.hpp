// Processes that a test forks, one a rank, and what they say.
#pragma once

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <exception>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "fabric/unique_fd.hpp"
#include "flashmoe/error.hpp"

namespace flashmoe::test {

/// "Timeout: what() of it"
inline std::string describe_exception(const std::exception& error) {
  const char* kind = dynamic_cast<const Timeout*>(&error)           ? "Timeout"
                     : dynamic_cast<const FabricError*>(&error)     ? "FabricError"
                     : dynamic_cast<const CudaError*>(&error)       ? "CudaError"
                     : dynamic_cast<const InvalidArgument*>(&error) ? "InvalidArgument"
                                                                    : "exception";
  return fmt::format("{}: {}", kind, error.what());
}

class Processes {
 public:
  /// Tells the parent something while the process goes on.
  using Say = std::function<void(std::string_view)>;
  /// What it returns, or the exception it ends with, is the last thing it says.
  using Body = std::function<std::string(const Say&)>;

  /// Starts process number size(). It dies with its parent.
  void start(const Body& body) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
    const pid_t pid = fork();
    if (pid < 0) throw std::runtime_error("no process");
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      const Say say = [fd = ends[1]](std::string_view text) {
        while (!text.empty()) {
          const ssize_t written = write(fd, text.data(), text.size());
          if (written <= 0) _exit(1);
          text.remove_prefix(static_cast<std::size_t>(written));
        }
      };
      try {
        say(body(say));
      } catch (const std::exception& error) {
        say(describe_exception(error));
      }
      _exit(0);
    }
    close(ends[1]);
    children_.push_back({pid, fabric::UniqueFd(ends[0]), "", false});
  }

  ~Processes() {
    for (Child& child : children_) {
      if (child.finished) continue;
      ::kill(child.pid, SIGKILL);
      waitpid(child.pid, nullptr, 0);
    }
  }

  std::size_t size() const { return children_.size(); }
  pid_t pid(std::size_t index) const { return children_[index].pid; }
  void signal(std::size_t index, int signal_number) const { ::kill(children_[index].pid, signal_number); }

  /// Waits until a process has said `word`; false when it ends before.
  bool wait_for(std::size_t index, std::string_view word) {
    Child& child = children_[index];
    while (child.said.find(word) == std::string::npos) {
      if (!read_some(child)) return false;
    }
    return true;
  }

  /// Waits for the end of a process: all it said, and " (signal N)" where one ended it.
  std::string finish(std::size_t index) {
    Child& child = children_[index];
    while (read_some(child)) {
    }
    int status = 0;
    waitpid(child.pid, &status, 0);
    child.finished = true;
    return child.said + (WIFSIGNALED(status) ? fmt::format(" (signal {})", WTERMSIG(status)) : "");
  }

  std::vector<std::string> finish_all() {
    std::vector<std::string> said;
    for (std::size_t i = 0; i < size(); ++i) said.push_back(finish(i));
    return said;
  }

 private:
  struct Child {
    pid_t pid;
    fabric::UniqueFd output;
    std::string said;
    bool finished = false;
  };

  static bool read_some(Child& child) {
    char text[4096];
    const ssize_t count = read(child.output.get(), text, sizeof(text));
    if (count <= 0) return false;
    child.said.append(text, static_cast<std::size_t>(count));
    return true;
  }

  std::vector<Child> children_;
};

/// Files this process has open.
inline int count_open_files() {
  int count = 0;
  for (int fd = 0; fd < 4096; ++fd) count += fcntl(fd, F_GETFD) >= 0 ? 1 : 0;
  return count;
}

}  // namespace flashmoe::test
