#include "launched_ranks.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <string_view>
#include <utility>

#include "fabric/local_socket.hpp"
#include "flashmoe/error.hpp"

namespace flashmoe::cli {

namespace {

/// The sentence of the last error line.
std::string last_error(std::string_view said) {
  constexpr std::string_view kMark = "error: ";
  while (!said.empty() && said.back() == '\n') said.remove_suffix(1);
  said.remove_prefix(said.rfind('\n') + 1);  // npos + 1 is 0
  const std::size_t mark = said.find(kMark);
  return std::string(mark == said.npos ? said : said.substr(mark + kMark.size()));
}

}  // namespace

LaunchedRanks::LaunchedRanks(const std::vector<std::string>& command_line, const ProcessRank& own) {
  for (int rank = 1; rank < own.num_ranks; ++rank) {
    start(command_line, {.group_id = own.group_id, .rank = rank, .num_ranks = own.num_ranks, .device = rank});
  }
}

void LaunchedRanks::start(const std::vector<std::string>& command_line, const ProcessRank& place) {
  std::vector<std::string> arguments = command_line;
  for (std::string argument : {std::string("--rank"), fmt::format("{}", place.rank), std::string("--group-id"), place.group_id}) {
    arguments.push_back(std::move(argument));
  }
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);

  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw Error("no more files may be open: raise the limit (ulimit -n)");
  fabric::UniqueFd read_end(ends[0]);
  const fabric::UniqueFd write_end(ends[1]);
  const pid_t parent = getpid();
  const pid_t process = fork();
  if (process < 0) throw Error(fmt::format("no process can be started for rank {}: raise the limit (ulimit -u)", place.rank));
  if (process == 0) {
    // Between fork and exec nothing but system calls: this process may have threads.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent || dup2(write_end.get(), STDERR_FILENO) < 0) _exit(kFault);
    execv("/proc/self/exe", pointers.data());
    _exit(kFault);
  }
  children_.push_back({place.rank, process, std::move(read_end), ""});
}

LaunchedRanks::~LaunchedRanks() {
  for (const Child& child : children_) {
    kill(child.process, SIGKILL);
    waitpid(child.process, nullptr, 0);
  }
}

std::vector<LaunchedRanks::Ending> LaunchedRanks::wait(double seconds) {
  const fabric::Deadline deadline = fabric::after_seconds(seconds);
  std::vector<Ending> endings;
  for (Child& child : children_) {
    pollfd output{child.errors.get(), POLLIN, 0};
    char text[4096];
    bool overdue = false;
    while (true) {
      overdue = !fabric::wait_ready({&output, 1}, deadline);
      if (overdue) {
        kill(child.process, SIGKILL);
        break;
      }
      const ssize_t count = read(child.errors.get(), text, sizeof(text));
      if (count <= 0) break;
      child.said.append(text, static_cast<std::size_t>(count));
    }
    endings.push_back(end(child, overdue));
  }
  children_.clear();
  return endings;
}

LaunchedRanks::Ending LaunchedRanks::end(Child& child, bool overdue) {
  int status = 0;
  waitpid(child.process, &status, 0);
  Ending ending{.rank = child.rank, .code = kFault, .reason = {}, .first_hand = !overdue};
  if (overdue) {
    ending.reason = fmt::format("rank {} (process {}) went on after the others had ended", child.rank, child.process);
  } else if (WIFSIGNALED(status)) {
    ending.reason = fmt::format("rank {} (process {}) was ended by signal {}", child.rank, child.process, WTERMSIG(status));
  } else {
    ending.code = static_cast<ExitCode>(WEXITSTATUS(status));
    ending.first_hand = ending.code == kBadInput || ending.code == kDeviceUnavailable;
    if (ending.code != kRight) ending.reason = fmt::format("rank {}: {}", child.rank, last_error(child.said));
  }
  return ending;
}

void throw_ending(const LaunchedRanks::Ending& ending) {
  switch (ending.code) {
    case kBadInput: throw InvalidArgument(ending.reason);
    case kDeviceUnavailable: throw CudaError(ending.reason);
    default: throw Error(ending.reason);
  }
}

}  // namespace flashmoe::cli
