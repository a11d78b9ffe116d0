// Threads that play the ranks of a group, and what each rank's last call threw.
#pragma once

#include <cstddef>
#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace flashmoe::test {

class RankThreads {
 public:
  explicit RankThreads(int num_ranks) : errors_(static_cast<std::size_t>(num_ranks)) {}

  /// Runs `work(rank)` in one thread a rank, and keeps what it throws.
  void each_rank(const std::function<void(std::size_t)>& work) {
    forget_errors();
    std::vector<std::jthread> threads;
    for (std::size_t rank = 0; rank < errors_.size(); ++rank) {
      threads.emplace_back([&, rank] { guarded(rank, [&] { work(rank); }); });
    }
  }

  /// The message of a rank's error, empty without one.
  std::string message(std::size_t rank) const {
    if (!errors_[rank]) return {};
    try {
      std::rethrow_exception(errors_[rank]);
    } catch (const std::exception& error) {
      return error.what();
    }
  }

  template <class Exception>
  bool threw(std::size_t rank) const {
    if (!errors_[rank]) return false;
    try {
      std::rethrow_exception(errors_[rank]);
    } catch (const Exception&) {
      return true;
    } catch (...) {
      return false;
    }
  }

 protected:
  void forget_errors() { errors_.assign(errors_.size(), nullptr); }
  template <class Function>
  void guarded(std::size_t rank, const Function& function) {
    try {
      function();
    } catch (...) {
      errors_[rank] = std::current_exception();
    }
  }
  bool failed(std::size_t rank) const { return errors_[rank] != nullptr; }

 private:
  std::vector<std::exception_ptr> errors_;  // [num_ranks]
};

}  // namespace flashmoe::test
