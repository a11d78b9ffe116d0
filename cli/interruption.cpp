#include "interruption.hpp"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <deque>

#include "exit_code.hpp"

namespace flashmoe::cli {

namespace {

// What the handler reads: whole strings that stay where they are, since it may interrupt anything.
std::deque<std::string> sentences;
std::atomic<const std::string*> latest{nullptr};
std::string removed_file;
struct sigaction previous_action;

extern "C" void end_interrupted(int) {
  const std::string& text = *latest.load(std::memory_order_acquire);
  [[maybe_unused]] const ssize_t ignored = write(STDERR_FILENO, text.data(), text.size());
  if (!removed_file.empty()) unlink(removed_file.c_str());
  _exit(kInterrupted);
}

}  // namespace

Interruption::Interruption(const std::filesystem::path& lock) {
  removed_file = lock.string();
  say("nothing is kept");
  sigaction(SIGINT, nullptr, &previous_action);
  if (previous_action.sa_handler == SIG_IGN) return;
  struct sigaction action {};
  action.sa_handler = end_interrupted;
  sigaction(SIGINT, &action, nullptr);
}

Interruption::~Interruption() { sigaction(SIGINT, &previous_action, nullptr); }

void Interruption::say(const std::string& sentence) {
  // A terminal is in the middle of a progress line.
  const char* start = isatty(STDERR_FILENO) != 0 ? "\n" : "";
  sentences.push_back(start + ("flashmoe: error: interrupted: " + sentence + '\n'));
  latest.store(&sentences.back(), std::memory_order_release);
}

}  // namespace flashmoe::cli
