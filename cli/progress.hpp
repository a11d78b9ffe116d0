// What the user sees while a job runs: a bar on a terminal, a line a stage elsewhere; always on standard error.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

namespace flashmoe::cli {

/// One stage of a job, from construction to destruction.
class Stage {
 public:
  /// `num_steps` is how often advance() will be called; 0: unknown.
  Stage(std::string name, std::int64_t num_steps);
  ~Stage();
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;

  /// Thread-safe.
  void advance() { steps_done_.fetch_add(1, std::memory_order_relaxed); }

 private:
  void draw(bool finished);
  void redraw_until_finished();

  const std::string name_;
  const std::int64_t num_steps_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  const bool on_terminal_;
  std::atomic<std::int64_t> steps_done_{0};
  std::mutex mutex_;
  std::condition_variable finishing_;
  bool finished_ = false;
  std::thread painter_;
};

}  // namespace flashmoe::cli
