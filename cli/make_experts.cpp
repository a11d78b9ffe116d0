#include "make_experts.hpp"

#include <atomic>
#include <cstddef>
#include <exception>
#include <mutex>
#include <thread>

namespace flashmoe::cli {

void make_experts(const ExpertSource& experts, const std::vector<int>& wanted, int num_threads, Stage* stage) {
  std::atomic<std::size_t> next{0};
  std::exception_ptr error;
  std::mutex mutex;
  std::vector<std::jthread> threads;
  for (int thread = 0; thread < num_threads; ++thread) {
    threads.emplace_back([&] {
      try {
        for (std::size_t i = next++; i < wanted.size(); i = next++) {
          experts.expert(wanted[i]);
          if (stage != nullptr) stage->advance();
        }
      } catch (...) {
        const std::lock_guard lock(mutex);
        error = std::current_exception();
        next = wanted.size();
      }
    });
  }
  threads.clear();
  if (error) std::rethrow_exception(error);
}

}  // namespace flashmoe::cli
