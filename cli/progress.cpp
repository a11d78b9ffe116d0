#include "progress.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <utility>

#include "log.hpp"

namespace flashmoe::cli {

namespace {

constexpr auto kFrame = std::chrono::milliseconds(100);
constexpr int kBarCells = 30;

}  // namespace

Stage::Stage(std::string name, std::int64_t num_steps)
    : name_(std::move(name)),
      num_steps_(num_steps),
      on_terminal_(isatty(STDERR_FILENO) != 0 && shows_info()) {
  if (on_terminal_) painter_ = std::thread([this] { redraw_until_finished(); });
}

Stage::~Stage() {
  const bool failed = std::uncaught_exceptions() > 0;
  if (on_terminal_) {
    {
      const std::lock_guard lock(mutex_);
      finished_ = true;
    }
    finishing_.notify_all();
    painter_.join();
    draw(!failed);
    std::fputc('\n', stderr);
  } else if (!failed) {
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin_;
    log_info(fmt::format("{}: {:.1f} s", name_, elapsed.count()));
  }
}

void Stage::redraw_until_finished() {
  std::unique_lock lock(mutex_);
  while (!finishing_.wait_for(lock, kFrame, [this] { return finished_; })) draw(false);
}

void Stage::draw(bool finished) {
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin_;
  const std::int64_t done = steps_done_.load(std::memory_order_relaxed);
  const double fraction = finished ? 1.0
                          : num_steps_ > 0
                              ? std::min(1.0, static_cast<double>(done) / static_cast<double>(num_steps_))
                              : 0.0;
  const int filled = static_cast<int>(fraction * kBarCells);
  const std::string line = fmt::format("\r{:<18} [{}{}] {:3.0f} % {:6.1f} s", name_, std::string(filled, '#'),
                                       std::string(kBarCells - filled, '.'), 100.0 * fraction, elapsed.count());
  std::fputs(line.c_str(), stderr);
  std::fflush(stderr);
}

}  // namespace flashmoe::cli
