// The processes of a run that rank 0 starts: this program once more for every other rank.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "exit_code.hpp"
#include "fabric/unique_fd.hpp"
#include "flashmoe/group.hpp"

namespace flashmoe::cli {

class LaunchedRanks {
 public:
  /// `command_line`: this process's own; the others get their place added. They end with this process. Throws Error when
  /// the system starts no more processes.
  LaunchedRanks(const std::vector<std::string>& command_line, const ProcessRank& own);
  LaunchedRanks(const LaunchedRanks&) = delete;
  LaunchedRanks& operator=(const LaunchedRanks&) = delete;
  ~LaunchedRanks();  ///< ends who is left

  struct Ending {
    int rank = 0;
    ExitCode code = kRight;
    std::string reason;       ///< one sentence, empty when right
    bool first_hand = false;  ///< the reason is the rank's own, not what it saw of another one
  };

  /// Waits for all, at most `seconds`, ends who is left, and returns how they ended, by rank.
  std::vector<Ending> wait(double seconds);

 private:
  struct Child {
    int rank;
    pid_t process;
    fabric::UniqueFd errors;  // its standard error
    std::string said;
  };
  void start(const std::vector<std::string>& command_line, const ProcessRank& place);
  static Ending end(Child& child, bool overdue);

  std::vector<Child> children_;
};

/// Throws the ending as the error that it was, so that this process ends alike.
[[noreturn]] void throw_ending(const LaunchedRanks::Ending& ending);

}  // namespace flashmoe::cli
