#include "cpu/in_order.hpp"

#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace flashmoe {
namespace {

// Whose turn it is. Progress: the lowest unit not committed is always with a worker that waits for nobody.
class Turns {
 public:
  explicit Turns(std::int64_t num_units) : num_units_(num_units) {}

  /// The next unit to compute, or num_units when there is none left or one has failed.
  std::int64_t take() {
    const std::lock_guard lock(mutex_);
    return failed_unit_ < num_units_ || next_ == num_units_ ? num_units_ : next_++;
  }

  /// Waits until every lower unit is committed; false when one of them has failed.
  bool wait_for(std::int64_t unit) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return committed_ == unit || failed_unit_ < unit; });
    return committed_ == unit;
  }

  void done() {
    const std::lock_guard lock(mutex_);
    ++committed_;
    changed_.notify_all();
  }

  void fail(std::int64_t unit, std::exception_ptr error) {
    const std::lock_guard lock(mutex_);
    if (unit < failed_unit_) {
      failed_unit_ = unit;
      error_ = error;
    }
    changed_.notify_all();
  }

  std::exception_ptr error() const { return error_; }

 private:
  const std::int64_t num_units_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::int64_t next_ = 0;
  std::int64_t committed_ = 0;
  std::int64_t failed_unit_ = num_units_;
  std::exception_ptr error_;
};

}  // namespace

void compute_in_order(std::int64_t num_units, int num_threads, const std::function<void(std::int64_t, int)>& compute,
                      const std::function<void(std::int64_t, int)>& commit) {
  Turns turns(num_units);
  const auto work = [&](int worker) {
    for (std::int64_t unit = turns.take(); unit < num_units; unit = turns.take()) {
      try {
        compute(unit, worker);
        if (!turns.wait_for(unit)) return;
        commit(unit, worker);
        turns.done();
      } catch (...) {
        turns.fail(unit, std::current_exception());
        return;
      }
    }
  };
  {
    std::vector<std::jthread> helpers;
    for (int worker = 1; worker < num_threads && worker < num_units; ++worker) helpers.emplace_back(work, worker);
    work(0);
  }
  if (turns.error()) std::rethrow_exception(turns.error());
}

}  // namespace flashmoe
